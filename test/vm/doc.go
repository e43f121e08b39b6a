// Package vm runs ballast on whole machines: Debian with its own kernel, systemd, AppArmor and a containerd that was
// installed as its documentation says, in QEMU without hardware virtualization. `make vm` makes the machines and runs
// the tests. The tests have the build tag vm, so that `go test ./...` does not start machines.
//
// # Machines
//
// build.sh makes kernels and disks from Debian packages; a test writes to a copy of a disk. A machine is driven by
// ssh. Its clock, processors and network are virtual, everything else is what users have. A reboot ends QEMU, and the
// test starts it again, with another kernel if it wants. A power cut is a SIGKILL for QEMU: the page cache of the
// machine is lost, and what it has flushed to its disk is not.
//
// # Registries
//
// A machine can reach nothing but the registries of the test, at an address of [TEST-NET-3]. One server of the test
// is behind it, with a certificate that the machine trusts, so references have the names that users write:
// registry.ollama.ai.
//
// # Journeys
//
// The tests are sequences of journeys on one machine. Each journey is a subtest and a row of the table that is
// printed at the end. A failed journey does not end the test, so that one fault does not hide others.
//
// [TEST-NET-3]: https://www.rfc-editor.org/rfc/rfc5737
package vm
