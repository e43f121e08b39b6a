// Ballast is the command line of ballast: it downloads models ahead of their use, shows which
// models are present and how much space they use, and checks why a node does not show a model.
//
// Most commands send requests to the daemon over its admin socket and need root. "inspect
// --remote", "convert", "digest", "config" (except "rotate-ca"), "version" and "completion" work
// without it.
//
// Results go to stdout; progress, messages and errors to stderr. With -o json a result is JSON with
// exact numbers, and progress is one JSON object per line. Errors begin with "ballast: ",
// unexpected side effects of a success with "ballast: warning: ", useful information with "ballast:
// note: ".
//
// # Exit codes
//
//	  0  success
//	  1  any other error; doctor: a check failed
//	  2  the command line or the configuration is wrong
//	  3  not found
//	  4  not logged in, or not allowed
//	  5  bytes do not match their digest, or are missing
//	  6  no space, or a limit is reached
//	  7  network, or the daemon does not answer; worth a retry
//	  8  the format is not supported
//	  9  interrupted by the end of the daemon; a retry continues from there
//	 10  the model is invalid: a manifest, a config or a file breaks the rules of its format
//	 11  the state of the node or of the model does not allow it, or a rule does not
//	 12  something else already exists there
//	130  interrupted by SIGINT; the daemon continues
//
// A command with several names continues after an error, prints every error, and has the exit code
// of the first.
package main
