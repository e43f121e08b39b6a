// Ballast is the command line of ballast: it fetches models ahead of their use, says what is
// there and what it takes, and finds out why a node would not show a model.
//
// Most commands ask the daemon over its admin socket and need root. "inspect --remote",
// "convert", "digest", "config" (but for "rotate-ca"), "version" and "completion" work without it.
//
// Results go to stdout; progress, messages and errors to stderr. With -o json a result is JSON
// with exact numbers, and progress one JSON object a line. Errors begin with "ballast: ", what went well but is not as
// somebody could expect with "ballast: warning: ", what is good to know with "ballast: note: ".
//
// # Exit codes
//
//	  0  all is well
//	  1  any other error; doctor: something has to be mended
//	  2  the command line or the configuration is wrong
//	  3  not found
//	  4  not logged in, or not allowed
//	  5  bytes are not what their digest says, or are missing
//	  6  no space, or a limit is reached
//	  7  network, or the daemon does not answer; worth another try
//	  8  a format that is not supported
//	  9  interrupted by the daemon's end; the next try goes on from there
//	 10  the model is invalid: a manifest, a config or a file breaks the rules of its format
//	 11  the state of the node or of the model does not allow it, or a rule does not
//	 12  something else is there already
//	130  interrupted by SIGINT; the daemon goes on
//
// A command that is given several names goes on after an error, prints each, and ends with the code of the first.
package main
