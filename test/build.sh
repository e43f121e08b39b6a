# Functions of the scripts that build other programs from their modules. To be sourced.

# module_dir MODULE VERSION CHECKSUM prints the source directory of a module after comparing its checksum.
module_dir() {
	local got try
	for try in 1 2 3; do # a proxy may be busy
		got=$(cd / && go mod download -json "$1@$2") && break # outside of this module, so that its go.sum does not change
		sleep $((5 * try))
	done
	if ! grep -qF "\"Sum\": \"$3\"" <<<"$got"; then
		echo "${0##*/}: $1@$2 does not have the checksum $3: $got" >&2
		return 1
	fi
	sed -n 's/^\t"Dir": "\(.*\)",$/\1/p' <<<"$got"
}

# pinned FILE MODULE prints the last line of a file that has a module: module, version and checksum.
pinned() { awk -v module="$2" '$1 == module {line = $0} END {print line}' "$1"; }

# stamped FILE STAMP COMMAND… runs a command unless its last successful run wrote the same stamp to the file. It waits for
# another process that runs one for the file.
stamped() {
	local file=$1 stamp=$2 lock
	shift 2
	mkdir -p "$(dirname "$file")"
	exec {lock}>"$file.lock"
	flock "$lock"
	if [ "$(cat "$file" 2>/dev/null || true)" != "$stamp" ]; then
		rm -f "$file"
		"$@" {lock}>&-
		echo "$stamp" >"$file"
	fi
	exec {lock}>&-
}
