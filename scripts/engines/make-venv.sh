#!/bin/sh
# An environment with the launchers of Slurm and Ray beside that of the checkout (.venv): their tests use it. It sees the
# packages of .venv and adds the engines', in the exact versions below, some of which .venv has differently.
#
#   make-venv.sh [DIR]      default: .venv-engines
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
dir=${1:-$root/.venv-engines}
pins=$root/scripts/engines/constraints.txt
python=$root/.venv/bin/python
[ -x "$python" ] || { echo "make install first" >&2; exit 2; }
[ "$dir/.installed" -nt "$pins" ] && exit 0
"$python" -m venv "$dir"
# All pins and nothing else: resolving them anew takes minutes.
"$dir/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps -r "$pins"
site() { "$1" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }
site "$python" > "$(site "$dir/bin/python")/zz_checkout.pth"
touch "$dir/.installed"
