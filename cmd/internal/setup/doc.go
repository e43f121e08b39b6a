// Package setup installs ballast on a node, upgrades it, puts the version before back, and takes it away.
//
// # Plan and execution
//
// New, NewRemoval, NewRollback and NewOpen look at a host and return a Plan: the steps that make it what it is
// asked to be, none where it is that already. They change nothing. Plan.Apply carries the steps out.
//
// # Order
//
// What containerd needs is there before containerd is told of it, and is taken away after it was told to
// forget it. A crash between two steps leaves a node that pulls ordinary images, and a second run makes the
// steps that are left:
//
//	set up    programs, settings, units → the daemon answers, its keys are there
//	          → drop-in, import → containerd restarts → hosts.toml
//	remove    hosts.toml → images → drop-in, import → containerd restarts → the daemon ends
//	          → units, models, settings, programs, record
//
// Every file is replaced by a rename. If containerd does not come back with its new configuration it gets the
// old one again.
//
// # Record
//
//	/var/lib/ballast-setup/setup.json   what was chosen, what was written, what has to be restarted
//	/var/lib/ballast-setup/originals/   files that were there before, by their path
//	/var/lib/ballast-setup/previous/    what the last upgrade replaced, by its path
//
// It is written before the first step, with all that is about to be written and restarted, and after the
// last. Files are never compared with it to find out what to do: the host is what counts. Restarts are: a file
// that is right does not say whether who reads it has done so.
//
// # What is edited
//
// containerd's main file gets one import more, and nothing else of it changes: the text is edited in place,
// and both versions are compared as data before it is written. A glob that it imports already is used as
// it is. k3s and RKE2 write that file anew, and import a directory beside it; versions before that have a
// template, which gets a block of ours. Talos can not be changed from inside: what has to be added to its
// machine configuration is printed.
//
// # Healing
//
// A registry that is closed (its tags go through the facade alone) can not be asked for tags while ballastd is
// stopped. So nothing that brings ballastd back may need that: see heal. Its table says what comes when. The
// default is to close nothing; registry.ollama.ai is safe to close, because it has no images but models.
package setup
