{{/* A service account that can change the label and the startup taint of its own node, and nothing else.
The labels for complete ModelSets are its own too, also without fleet.enabled: it removes them.
dict "root" $ "name" … "component" … "verbs" list "annotations" dict.

RBAC knows nodes by name only, so patching any node is allowed by it, and what the patch may be is a policy's
matter: the node is the one that the token is for (a claim that the kubelet asks for, and no pod can change), and only
the label and the taint differ. The kubelet's own credentials could not do it: it may not change taints. */}}
{{- define "ballast.marks" -}}
{{- $root := .root -}}
{{- $name := .name -}}
{{- $own := printf "k == %q || k.startsWith(\"models.ballast.dev/\")" .root.Values.node.label -}}
{{- $meta := dict "root" .root "component" .component -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ $name }}
  namespace: {{ $root.Release.Namespace }}
  labels:
    {{- include "ballast.component" $meta | nindent 4 }}
  {{- with .annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
automountServiceAccountToken: false
{{- if $root.Values.node.mark }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: {{ $name }}
  labels:
    {{- include "ballast.component" $meta | nindent 4 }}
  {{- with .annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
rules:
  - apiGroups: [""]
    resources: [nodes]
    verbs: [{{ join ", " .verbs }}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: {{ $name }}
  labels:
    {{- include "ballast.component" $meta | nindent 4 }}
  {{- with .annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: {{ $name }}}
subjects:
  - {kind: ServiceAccount, name: {{ $name }}, namespace: {{ $root.Release.Namespace }}}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: {{ $name }}
  labels:
    {{- include "ballast.component" $meta | nindent 4 }}
  {{- with .annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
      - apiGroups: [""]
        apiVersions: [v1]
        operations: [CREATE, UPDATE, DELETE]
        resources: [nodes, nodes/*]
  matchConditions:
    - name: account
      expression: request.userInfo.username == "system:serviceaccount:{{ $root.Release.Namespace }}:{{ $name }}"
  variables:
    - name: taints
      expression: "has(object.spec.taints) ? object.spec.taints : []"
    - name: oldTaints
      expression: "has(oldObject.spec.taints) ? oldObject.spec.taints : []"
    - name: labels
      expression: "has(object.metadata.labels) ? object.metadata.labels : {}"
    - name: oldLabels
      expression: "has(oldObject.metadata.labels) ? oldObject.metadata.labels : {}"
  validations:
    - expression: request.operation == "UPDATE" && (!has(request.subResource) || request.subResource == "")
      message: only nodes that are there may be changed
      reason: Forbidden
    - expression: >-
        has(request.userInfo.extra) && "authentication.kubernetes.io/node-name" in request.userInfo.extra &&
        request.userInfo.extra["authentication.kubernetes.io/node-name"].exists(n, n == request.name)
      message: a pod may change its own node only
      reason: Forbidden
    - expression: >-
        variables.labels.all(k, {{ $own }} || k in variables.oldLabels && variables.labels[k] == variables.oldLabels[k]) &&
        variables.oldLabels.all(k, {{ $own }} || k in variables.labels)
      message: only the label {{ $root.Values.node.label }} and those of ModelSets may be changed
      reason: Forbidden
    - expression: >-
        variables.taints == variables.oldTaints ||
        variables.taints == variables.oldTaints.filter(t, t.key != "{{ $root.Values.node.startupTaint }}")
      message: only the taint {{ $root.Values.node.startupTaint }} may be removed
      reason: Forbidden
    - expression: >-
        (has(object.metadata.annotations) ? object.metadata.annotations : {}) == (has(oldObject.metadata.annotations) ? oldObject.metadata.annotations : {}) &&
        (has(object.metadata.finalizers) ? object.metadata.finalizers : []) == (has(oldObject.metadata.finalizers) ? oldObject.metadata.finalizers : []) &&
        (has(object.metadata.ownerReferences) ? object.metadata.ownerReferences : []) == (has(oldObject.metadata.ownerReferences) ? oldObject.metadata.ownerReferences : []) &&
        (has(object.spec.unschedulable) && object.spec.unschedulable) == (has(oldObject.spec.unschedulable) && oldObject.spec.unschedulable) &&
        (has(object.spec.providerID) ? object.spec.providerID : "") == (has(oldObject.spec.providerID) ? oldObject.spec.providerID : "") &&
        (has(object.spec.podCIDRs) ? object.spec.podCIDRs : []) == (has(oldObject.spec.podCIDRs) ? oldObject.spec.podCIDRs : [])
      message: nothing but the label and the taint may be changed
      reason: Forbidden
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ $name }}
  labels:
    {{- include "ballast.component" $meta | nindent 4 }}
  {{- with .annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  policyName: {{ $name }}
  validationActions: [Deny]
{{- end }}
{{- end }}
