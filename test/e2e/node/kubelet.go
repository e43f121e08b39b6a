package node

import "maps"

// Kubernetes returns the path of a program of a cluster, as built by test/kubernetes/build.sh --all.
func Kubernetes(t TB, name string) string {
	return built(t, ".cache/tools/kubernetes/"+name, "test/kubernetes/build.sh --all")
}

// KServePod returns the path of kserve-pod, which adds a model to a pod with the code of KServe.
func KServePod(t TB) string {
	return built(t, ".cache/tools/kserve-pod", "test/kubernetes/build.sh")
}

// KubeletConfig is the configuration of a kubelet that does not control its machine, with more of it in more.
// https://kubernetes.io/docs/reference/config-api/kubelet-config.v1beta1/
func KubeletConfig(more map[string]any) map[string]any {
	config := map[string]any{
		"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
		"healthzPort": 0, "readOnlyPort": 0,
		"authentication": map[string]any{"anonymous": map[string]any{"enabled": true}, "webhook": map[string]any{"enabled": false}},
		"authorization":  map[string]any{"mode": "AlwaysAllow"},
		"cgroupDriver":   "cgroupfs", "cgroupsPerQOS": false, "enforceNodeAllocatable": []string{},
		"failCgroupV1": false, "failSwapOn": false,
		"protectKernelDefaults": true, "makeIPTablesUtilChains": false,
		"evictionHard": map[string]string{"memory.available": "1Mi"}, "imageGCHighThresholdPercent": 100,
	}
	maps.Copy(config, more)
	return config
}
