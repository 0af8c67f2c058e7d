#!/bin/sh
# Environments with the plug-ins of engines beside that of the checkout (.venv): their tests use them. Each sees the packages
# of .venv and adds its own, in exact versions, some of which .venv has differently.
#
#   make-venv.sh            .venv-engines (Slurm, Ray on Hydra 1.3), .venv-optuna (Optuna, joblib on Hydra 1.4) and
#                           .venv-history (DuckDB, MLflow)
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
python=$root/.venv/bin/python
[ -x "$python" ] || { echo "make install first" >&2; exit 2; }
site() { "$1" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }

make_one() {
  dir=$root/$1 pins=$root/scripts/engines/$2
  [ "$dir/.installed" -nt "$pins" ] && return
  "$python" -m venv "$dir"
  # All pins and nothing else: resolving them anew takes minutes.
  "$dir/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps -r "$pins"
  site "$python" > "$(site "$dir/bin/python")/zz_checkout.pth"
  touch "$dir/.installed"
}

make_one .venv-engines constraints.txt
make_one .venv-optuna constraints-optuna.txt
make_one .venv-history constraints-history.txt
