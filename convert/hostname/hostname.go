package hostname

import (
	"net/netip"
	"slices"
	"strings"
)

// aliases are the other names of registries that have several.
var aliases = map[string]string{
	"index.docker.io": "docker.io", "registry-1.docker.io": "docker.io",
	"ollama.com":     "registry.ollama.ai",
	"huggingface.co": "hf.co",
}

// DefaultPorts are the ports of URLs without one, by scheme.
var DefaultPorts = map[string]string{"http": "80", "https": "443"}

// Normal returns the host of a Ref for a host as users and containerd write it: a registry has one name, so that
// rules, credentials and records for it cannot be avoided by another. The name is in lower case, without a dot at its
// end, and no alias; an address is written in its shortest form, an IPv4 address never in IPv6; the port has no zeros
// before it, and 443 is left out, since registries are asked by https: also by plain HTTP, if hosts.toml of the name
// says so. It stays after a name without a dot, which is no host in a reference without it. What is not a host is
// returned in lower case.
func Normal(host string) string {
	normal := Address(host, "https")
	if to, ok := aliases[normal]; ok {
		return to
	}
	if !strings.ContainsAny(normal, ".:") && normal != "localhost" && normal != strings.ToLower(host) {
		return Join(normal, DefaultPorts["https"])
	}
	return normal
}

// Address is Normal without aliases, for a host of a URL with a scheme, whose default port is left out.
func Address(host, scheme string) string {
	name, port := Split(host)
	if port == DefaultPorts[scheme] {
		port = ""
	}
	return Join(name, port)
}

// Split returns the name and the port of a host in their normal form, without aliases: an IPv6 address has
// brackets, also if it is written without. The port is empty if it is left out. What is not a host is a name in lower
// case.
func Split(host string) (name, port string) {
	name = strings.ToLower(host)
	if ip, err := netip.ParseAddr(name); err == nil && ip.Zone() == "" {
		return addressName(ip), ""
	}
	if i := strings.LastIndexByte(name, ':'); i >= 0 && i+1 < len(name) && strings.Trim(name[i+1:], "0123456789") == "" {
		if p := strings.TrimLeft(name[i+1:], "0"); p != "" {
			name, port = name[:i], p
		}
	}
	inner, bracket := strings.CutPrefix(name, "[")
	if bracket {
		var closed bool
		if inner, closed = strings.CutSuffix(inner, "]"); !closed {
			return strings.ToLower(host), "" // "[::1]x", or "[::1" whose port is a part of the address
		}
	}
	if ip, err := netip.ParseAddr(inner); err == nil && ip.Zone() == "" && bracket == ip.Is6() {
		return addressName(ip), port
	}
	if strings.Contains(name, ":") {
		return strings.ToLower(host), ""
	}
	if short := strings.TrimSuffix(name, "."); short != "" {
		name = short
	}
	return name, port
}

// addressName returns an address as the name of a host.
func addressName(ip netip.Addr) string {
	if ip = ip.Unmap(); ip.Is4() {
		return ip.String()
	}
	return "[" + ip.String() + "]"
}

// Join returns a host with a port, which may be empty.
func Join(name, port string) string {
	if port == "" {
		return name
	}
	return name + ":" + port
}

// Others returns other spellings of a normal host that people use for directories and in files: its aliases,
// sorted, and each name with the default port.
func Others(host string) (l []string) {
	for alias, to := range aliases {
		if to == host {
			l = append(l, alias)
		}
	}
	slices.Sort(l)
	if _, port := Split(host); port == "" {
		for _, name := range append([]string{host}, l...) {
			l = append(l, name+":"+DefaultPorts["https"])
		}
	}
	return l
}
