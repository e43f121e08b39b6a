{{/* One release in a cluster: the files on the nodes have one place each. So names are fixed. */}}
{{- define "ballast.selector" -}}
app.kubernetes.io/name: ballast
app.kubernetes.io/component: {{ . }}
{{- end }}

{{- define "ballast.labels" -}}
app.kubernetes.io/name: ballast
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* Labels of an object: dict "root" $ "component" "node". */}}
{{- define "ballast.component" -}}
{{ include "ballast.labels" .root }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "ballast.image" -}}
{{- with .Values.image -}}
{{ .registry }}/{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end -}}
{{- end }}

{{/* What can not work is refused here, and not on the nodes. */}}
{{- define "ballast.check" -}}
{{- $own := .Values.image.registry | lower -}}
{{- if has $own (list "index.docker.io" "registry-1.docker.io") }}{{ $own = "docker.io" }}{{ end -}}
{{- range .Values.registries }}
{{- if eq . $own }}
{{- fail (printf "image.registry %s is one of registries: a node whose ballastd is down could not pull the image that brings it back. Take the image from another registry (copy it there), or leave %s out of registries" $.Values.image.registry .) }}
{{- end }}
{{- end }}
{{- if and (eq .Values.daemon "pod") (not .Values.runtimeHandler) }}
{{- fail "daemon: pod needs a runtimeHandler: without one all pods use ballast, and that of ballastd could not start without itself" }}
{{- end }}
{{- if and (eq .Values.daemon "pod") (eq .Values.distro "auto") }}
{{- fail "daemon: pod needs a distro: it says which directory of the node has containerd's socket" }}
{{- end }}
{{- if and .Values.runtimeHandlerLike (not .Values.runtimeHandler) }}
{{- fail "runtimeHandlerLike is for a runtimeHandler" }}
{{- end }}
{{- if and (eq .Values.distro "talos") (ne .Values.daemon "pod") }}
{{- fail "distro: talos has no systemd: it needs daemon: pod" }}
{{- end }}
{{- range $name, $port := dict "metrics.port" .Values.metrics.port "fleet.controller.page" .Values.fleet.controller.page }}
{{- if has (int $port) (list 5757 9758 9759 9760) }}
{{- fail (printf "%s %d is another port of ballast: the facade has 5757, agents 9758, controllers 9759 and 9760" $name (int $port)) }}
{{- end }}
{{- end }}
{{- $mounts := list }}
{{- range include "ballast.providerPaths" . | fromJsonArray }}{{ $mounts = append $mounts .path }}{{ end }}
{{- if and (eq .Values.daemon "pod") (ne (len $mounts) (len (uniq $mounts))) }}
{{- fail "credentialProviders.paths has config or dir, which are mounted without it" }}
{{- end }}
{{- with .Values.credentialProviders }}
{{- if ne (empty .config) (empty .dir) }}
{{- fail "credentialProviders.config goes with credentialProviders.dir" }}
{{- end }}
{{- range concat (list .config .dir) .paths }}
{{- if has . (list "/usr/bin" "/usr/share" "/etc/ssl" "/etc/ballast" "/var/lib" "/var/lib/ballast" "/var/lib/kubelet" "/run/ballast") }}
{{- fail (printf "credentialProviders: %s cannot be mounted into the container of ballastd; name the directory or file below it" .) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* The directory of containerd's socket, for a daemon in a pod. */}}
{{- define "ballast.containerdDir" -}}
{{ if has .Values.distro (list "k3s" "rke2") }}/run/k3s/containerd{{ else }}/run/containerd{{ end }}
{{- end }}

{{/* What all pods have: the host's network, because the facade listens there and a node heals before it has another. */}}
{{- define "ballast.pod" -}}
hostNetwork: true
dnsPolicy: Default
enableServiceLinks: false
automountServiceAccountToken: false
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The container that changes the host: dict "root" $ "name" … "args" list. It is root with the usual capabilities, for
files of root below /host; CHROOT is for systemctl of the host. Only with "unmounts" it is privileged: what it unmounts has to
go on the host too. With "daemon" it runs one, with "env" it has the environment of the node's. */}}
{{- define "ballast.setup" -}}
- name: {{ .name }}
  image: {{ include "ballast.image" .root }}
  imagePullPolicy: {{ .root.Values.image.pullPolicy }}
  command: [ballast, setup, --host=/host]
  args:
    {{- toYaml .args | nindent 4 }}
  {{- if and .env .root.Values.env }}
  env:
    {{- toYaml .root.Values.env | nindent 4 }}
  {{- end }}
  securityContext:
    {{- if .unmounts }}
    privileged: true
    {{- else }}
    allowPrivilegeEscalation: false
    capabilities: {drop: [ALL], add: [CHOWN, DAC_OVERRIDE, FOWNER, SYS_CHROOT]}
    seLinuxOptions: {type: spc_t}
    {{- end }}
    readOnlyRootFilesystem: true
    runAsUser: 0
  resources:
    {{- toYaml .root.Values.resources.setup | nindent 4 }}
  volumeMounts:
    - {name: host, mountPath: /host, mountPropagation: {{ .unmounts | ternary "Bidirectional" "HostToContainer" }}}
    - {name: tmp, mountPath: /tmp}
    {{- if .daemon }}
    {{- include "ballast.daemonMounts" .root | nindent 4 }}
    {{- end }}
    {{- if .settings }}
    - {name: settings, mountPath: /settings, readOnly: true}
    {{- end }}
{{- end }}

{{/* What a daemon in a container needs of the host, where the host has it: what it tells containerd are paths. */}}
{{- define "ballast.daemonMounts" -}}
- {name: root, mountPath: /var/lib/ballast, mountPropagation: Bidirectional}
- {name: run, mountPath: /run/ballast, mountPropagation: Bidirectional}
- {name: config, mountPath: /etc/ballast, readOnly: true}
- {name: containerd, mountPath: {{ include "ballast.containerdDir" . }}}
{{- end }}
{{- define "ballast.daemonVolumes" -}}
- name: root
  hostPath: {path: /var/lib/ballast, type: DirectoryOrCreate}
- name: containerd # the directory: the socket is another one after each start of containerd
  hostPath: {path: {{ include "ballast.containerdDir" . }}, type: Directory}
{{- end }}
{{- define "ballast.ownVolumes" -}}
- name: run
  hostPath: {path: /run/ballast, type: DirectoryOrCreate}
{{ include "ballast.configVolume" . }}
{{- end }}

{{- define "ballast.configVolume" -}}
- name: config
  hostPath: {path: /etc/ballast, type: DirectoryOrCreate}
{{- end }}

{{/* Paths of the node that credential providers need, for a daemon in a pod: a list of pairs in JSON. A file is mounted alone,
unless it is in the directory of the programs: the directory that it is in can have mounts of the kubelet. */}}
{{- define "ballast.providerPaths" -}}
{{- $paths := list }}
{{- with .Values.credentialProviders }}
{{- if .config }}
{{- $paths = append $paths (dict "path" .dir "type" "Directory") }}
{{- if not (hasPrefix (printf "%s/" .dir) .config) }}{{ $paths = append $paths (dict "path" .config "type" "File") }}{{ end }}
{{- range .paths }}{{ $paths = append $paths (dict "path" . "type" "") }}{{ end }}
{{- end }}
{{- end }}
{{- $paths | toJson }}
{{- end }}

{{/* The security context of a container that is root, as owners of sockets are, with nothing else of root's. */}}
{{- define "ballast.confined" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsUser: 0
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{/* Flags of `ballast-fleet leave` and `agent` that say which node and what it has. */}}
{{- define "ballast.nodeArgs" -}}
{{- if .Values.node.mark -}}
- --name=$(NODE_NAME)
- --label={{ .Values.node.label }}
- --taint={{ .Values.node.startupTaint }}
{{- else if .Values.fleet.enabled -}}
- --name=$(NODE_NAME)
{{- end }}
{{- end }}

{{/* The role of the daemon's socket that the container "node" gets: one that changes nothing, unless it fetches models. */}}
{{- define "ballast.role" -}}
{{ .Values.fleet.enabled | ternary "fleet" "status" }}
{{- end }}

{{- define "ballast.nodeEnv" -}}
- name: NODE_NAME
  valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
{{- end }}

{{/* A token for the one container that asks the API server, and not for the others. */}}
{{- define "ballast.account" -}}
- name: account
  projected:
    defaultMode: 0400
    sources:
      - serviceAccountToken: {path: token, expirationSeconds: 3607}
      - configMap: {name: kube-root-ca.crt, items: [{key: ca.crt, path: ca.crt}]}
{{- end }}
{{- define "ballast.accountMount" -}}
- {name: account, mountPath: /var/run/secrets/kubernetes.io/serviceaccount, readOnly: true}
{{- end }}
