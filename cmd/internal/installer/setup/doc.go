// Package setup installs ballast on a node, upgrades it, and removes it. An earlier version is installed as a
// later one is, unless it cannot open the store.
//
// # Plan and execution
//
// New, NewRemoval and NewOpen inspect a host and return a Plan: the steps that lead to
// the requested state, none where the host already has it. They change nothing. Plan.Apply executes
// the steps.
//
// # Order
//
// What containerd needs is installed before containerd is configured to use it, and is removed
// after it was configured not to. A crash between two steps leaves a node that pulls ordinary
// images, and a second run executes the remaining steps:
//
//	set up    programs, settings, units → the daemon answers, its keys are there
//	          → drop-in, import → containerd restarts → hosts.toml → the list of these files → Docker
//	remove    Docker → the list → hosts.toml → images → drop-in, import → containerd restarts → the daemon ends
//	          → units, models, settings, programs, record
//
// Every file is replaced by a rename.
//
// # Checks and proof
//
// A plan is made on a node.View. Before it has a step, the configuration of containerd that it leads to is
// checked by node.Checker, as doctor checks the one that is there, and compared with the one without
// ballast: a plan that changes a setting of others is refused (judge). After containerd's restart, its
// plugins and CRI's conditions are compared with before (prove).
//
//	look → plan ──conflict──▶ refused
//	        │
//	        ▼
//	     journal → steps → restart → proof → done
//	                 └───────┴─────────┴──▶ undo → as before
//
// # Versions
//
// A file has versions. What a version is known by is the digest of its content, and one that is replaced is kept,
// with its mode and its owner, until nothing can need it any more:
//
//	was     of others, before setup has written the file: a removal puts it back
//	wrote   what setup has written; a run in progress can know several
//	before  of the run in progress: if that fails, it is put back
//	edited  what others have made of a file of setup, replaced by force: kept for them
//
// The journal of a run has the version before it of every file that it changes, and what it gives the files. A file
// that has neither of these was edited by others in the meantime, and stays. So does one that is not as the plan has
// found it: the step that changes it fails. The journal is in place until the run is done or undone: a crash before
// the undoing has begun is followed by a run that completes the steps, a crash in the undoing by one that completes
// that, or by a removal by force. Versions of others that have no place any more stay when ballast is removed. A
// configuration of containerd that is put back, and that a run without restarts has written, need not work: that
// containerd does not start with it is said, and the run is undone.
//
// # Record
//
//	/var/lib/ballast-setup/setup.json        the choices, the files written with their versions, the services to restart, and
//	                                         the journal of a run that has not ended
//	/var/lib/ballast-setup/kept/PATH@DIGEST  versions that are kept
//
// It is written before the first step, with all that is about to be written and restarted, and
// after the last. It decides what belongs to ballast: a file that is not in it, or has another digest, was
// made or edited by others, and stays. What is missing is decided by the host alone, except for restarts: a
// correct file does not show whether the service that reads it has done so.
//
// # Packages
//
// The programs of a package, in /usr/bin, are used where they are, and its units, in /usr/lib/systemd/system, where
// they fit the host; a unit that has to differ is written as ever, and takes precedence. Neither is in the record:
// the package replaces and removes them. Its scripts refuse to remove a package that the record names.
//
// # What is edited
//
// containerd's main file gets one additional import, and nothing else in it changes: the text is
// edited in place, and both versions are compared as data before it is written. A glob that is
// already imported is used as it is. k3s and RKE2 generate that file, and import a directory beside
// it; earlier versions have a template, which gets a block of ours. Talos cannot be changed from
// inside: the addition to its machine configuration is printed.
//
// # Environment
//
// The proxies of containerd become those of ballastd, in /etc/default/ballastd, which follows them until others edit
// it.
//
// # Docker
//
// Docker has one storage driver for all images and containers, and hosts.toml files of its own. Its settings are edited
// last and undone first: it does not start with a storage driver that containerd does not have. They are written again
// as data, because JSON has no comments; where others have edited them since, only our keys are taken back.
//
// # Certificates and mirrors
//
// Certificates of a closed registry in Docker's pattern stay where they are: ballastd reads them there
// (remote.Options.CertsDirs), and hosts.toml names them. What a hosts.toml of others says is not carried over but
// named: it can be meant for containerd alone, as the mirrors of Dragonfly and Spegel are.
//
// # Healing
//
// A closed registry (its tags go only through the facade) cannot resolve tags while ballastd is
// stopped. So nothing that is needed to start ballastd again may depend on it: see heal, whose
// table has the cases. By default no registry is closed; registry.ollama.ai is safe to close,
// because it has only models.
package setup
