package node

import (
	"fmt"
	"os"
	"path/filepath"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// usersLength is the number of users of a pod's user namespace, as with the kubelet.
const usersLength = 65536

// noNetwork is a CNI plugin that does nothing. Pods in user namespaces need their own network
// namespace, whose content does not matter here.
const noNetwork = `#!/bin/sh
case "$CNI_COMMAND" in
VERSION) echo '{"cniVersion":"1.0.0","supportedVersions":["0.4.0","1.0.0"]}' ;;
*) echo '{"cniVersion":"1.0.0","interfaces":[{"name":"eth0","sandbox":"'"$CNI_NETNS"'"}],"ips":[{"address":"10.99.0.2/24","interface":0}]}' ;;
esac
`

// writeNetwork installs the plugin.
func (n *Node) writeNetwork(t TB) {
	t.Helper()
	for _, name := range []string{"none", "loopback"} {
		n.write(t, filepath.Join("cni", name), noNetwork)
		if err := os.Chmod(filepath.Join(n.Dir, "cni", name), 0o755); err != nil {
			t.Fatalf("%v", err)
		}
	}
	n.write(t, "cni/10-none.conflist", `{"cniVersion":"1.0.0","name":"pods","plugins":[{"type":"none"}]}`)
}

// RunUserPod starts a pod in a user namespace with user 0 mapped to host; the clean-up removes it.
func (c *CRI) RunUserPod(t TB, host uint32) *Pod {
	t.Helper()
	config := c.podConfig()
	ids := []*cri.IDMapping{{HostId: host, Length: usersLength}}
	config.Linux.SecurityContext.NamespaceOptions = &cri.NamespaceOption{
		Network: cri.NamespaceMode_POD, Pid: cri.NamespaceMode_CONTAINER,
		UsernsOptions: &cri.UserNamespace{Mode: cri.NamespaceMode_POD, Uids: ids, Gids: ids},
	}
	return c.runPod(t, config, "")
}

// mapUsers sets the ID mapping of the pod for a container.
func (p *Pod) mapUsers(config *cri.ContainerConfig) {
	o := p.config.Linux.SecurityContext.NamespaceOptions
	if o.UsernsOptions == nil {
		return
	}
	config.Linux.SecurityContext = &cri.LinuxContainerSecurityContext{NamespaceOptions: o}
	for _, m := range config.Mounts {
		m.UidMappings, m.GidMappings = o.UsernsOptions.Uids, o.UsernsOptions.Gids
	}
}

// UserFlags returns flags of `ctr run` for a user namespace with user 0 mapped to host.
func UserFlags(host uint32) []string {
	ids := fmt.Sprintf("0:%d:%d", host, usersLength)
	return []string{"--uidmap", ids, "--gidmap", ids, "--remap-labels"}
}
