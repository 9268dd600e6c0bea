"""Shell script that runs a command inside a system container and records its output and exit code."""

IO = "/.mandor"
"""Folder shared by node and container: `begun`, `pid`, `out`, `err`, `exit`."""

SCRIPT = """\
cd "$1" 2>/dev/null || { echo "failed there is no folder $1" > /.mandor/exit; exit 0; }
shift
mkdir /.mandor/begun 2>/dev/null || exit 0
if ! command -v "$1" >/dev/null 2>&1; then
  echo "failed there is no program $1" > /.mandor/exit
  exit 0
fi
sh -c 'echo $$ > /.mandor/pid; exec "$@"' sh "$@" >> /.mandor/out 2>> /.mandor/err < /dev/null
echo "ended $?" > /.mandor/exit.new
mv /.mandor/exit.new /.mandor/exit
"""
"""For any POSIX shell. It runs the command once, as a child in the foreground, so that no signal is blocked."""


def command_line(working_dir: str, command: list[str]) -> list[str]:
    return ["sh", "-c", SCRIPT, "mandor", working_dir, *command]
