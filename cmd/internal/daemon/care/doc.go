// Package care keeps what is on the node right, and nothing longer than it is needed: it verifies objects and
// snapshots, repairs what is damaged or missing, releases models whose image or mount is gone, and says what holds a
// model.
//
//	Verify      once, for a command: objects, snapshots, and containerd's records of snapshots
//	Run         until the daemon ends: Store.CompareFiles once and Store.Scrub again and again, whose findings are repaired as by Verify;
//	            each minute ReleaseUnneeded, each hour what has expired
//
// A repair downloads only what is wrong: documents first (they name the objects), then objects, and then the
// snapshots that show them. Its sources are those from which the model came.
package care
