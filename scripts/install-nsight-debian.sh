#!/bin/sh
# Install NVIDIA Nsight Systems and Nsight Compute from Debian's non-free archive. Safe to run again.
#
#   install-nsight-debian.sh --apt                                   bookworm's 2022.4 as system packages (root)
#   install-nsight-debian.sh --unpack trixie       [--prefix DIR]    2023.4 into DIR/trixie, no package installed
#   install-nsight-debian.sh --unpack experimental [--prefix DIR]    2024.2 into DIR/experimental
#   further options: --only nsys|ncu   (default both)     --no-libs   (do not install the shared libraries they need)
#
# The packages come from the mirror this machine already uses; apt checks their signatures.
# The default prefix is /opt/nsight; llm-perf-opt looks there by itself. The driver's own version of the tools,
# or NVIDIA's packages, serve as well: put them on PATH, or set LLM_PERF_OPT_NSYS / LLM_PERF_OPT_NCU.
set -eu

KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg
PREFIX=/opt/nsight
SUITES=
WITH_APT=no
WITH_LIBS=yes
TOOLS="nsys ncu"

say() { printf 'install-nsight: %s\n' "$*"; }
die() { printf 'install-nsight: %s\n' "$*" >&2; exit "${2:-1}"; }
usage() { sed -n '2,12s/^# \{0,1\}//p' "$0"; }

while [ $# -gt 0 ]; do
  case $1 in
    --apt) WITH_APT=yes ;;
    --unpack)
      [ $# -ge 2 ] || die "--unpack needs a suite: trixie or experimental"
      case $2 in trixie|experimental) SUITES="$SUITES $2" ;; *) die "unknown suite '$2': trixie or experimental" ;; esac
      shift ;;
    --prefix) [ $# -ge 2 ] || die "--prefix needs a directory"; PREFIX=$2; shift ;;
    --only)
      [ $# -ge 2 ] || die "--only needs nsys or ncu"
      case $2 in nsys|ncu) TOOLS=$2 ;; *) die "--only takes nsys or ncu, not '$2'" ;; esac
      shift ;;
    --no-libs) WITH_LIBS=no ;;
    -h|--help) usage; exit 0 ;;
    *) usage >&2; die "unknown option '$1'" ;;
  esac
  shift
done
[ "$WITH_APT" = yes ] || [ -n "$SUITES" ] || { usage >&2; die "nothing to do: give --apt or --unpack"; }
case $PREFIX in /*) ;; *) PREFIX=$PWD/$PREFIX ;; esac
[ "$(dpkg --print-architecture 2>/dev/null)" = amd64 ] || die "needs Debian (or a derivative) on amd64"
[ -r "$KEYRING" ] || die "$KEYRING is missing: apt-get install debian-archive-keyring"

# The Debian archive that apt is configured with: Debian's own file, else the first entry that looks like one.
mirror() {
  uris='s/^URIs:[[:space:]]*\([^[:space:]]*\).*/\1/p'
  line='s/^deb[[:space:]]\{1,\}\(\[[^]]*\][[:space:]]\{1,\}\)\{0,1\}\([^[:space:]]*\).*/\2/p'
  found=
  if [ -r /etc/apt/sources.list.d/debian.sources ]; then
    found=$(sed -n "$uris" /etc/apt/sources.list.d/debian.sources | head -n 1)
  fi
  if [ -z "$found" ]; then
    found=$({
      for f in /etc/apt/sources.list.d/*.sources; do [ ! -r "$f" ] || sed -n "$uris" "$f"; done
      for f in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do [ ! -r "$f" ] || sed -n "$line" "$f"; done
    } | grep -E '/debian/?$' | head -n 1) || true
  fi
  printf '%s' "$found"
}
MIRROR=${NSIGHT_DEBIAN_MIRROR:-$(mirror)}
[ -n "$MIRROR" ] || die "no Debian archive in apt's configuration; set NSIGHT_DEBIAN_MIRROR=<URL of a Debian archive>"

packages() {
  for tool in $TOOLS; do
    case $tool in
      nsys) echo nsight-systems "$1" ;;
      ncu) echo nsight-compute "$2" ;;
    esac
  done | tr '\n' ' '
}

install_apt() {
  [ "$(id -u)" = 0 ] || die "--apt needs root"
  list=/etc/apt/sources.list.d/nonfree-nsight.sources
  wanted=$(printf 'Types: deb\nURIs: %s\nSuites: bookworm\nComponents: contrib non-free\nSigned-By: %s' "$MIRROR" "$KEYRING")
  pkgs=$(packages "" "")
  # shellcheck disable=SC2086  # a list of package names
  if ! dpkg -s $pkgs >/dev/null 2>&1; then
    [ "$(cat "$list" 2>/dev/null || true)" = "$wanted" ] || printf '%s\n' "$wanted" >"$list"
    apt-get update -q
    # shellcheck disable=SC2086
    DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $pkgs
  fi
  # Without this link the collector does not find its importer and leaves only a .qdstrm.
  if [ -d /usr/lib/x86_64-linux-gnu/nsight-systems ]; then
    ln -sfn /usr/lib/nsight-systems/host-linux-x64 /usr/lib/x86_64-linux-gnu/nsight-systems/host-linux-x64
  fi
}

# Libraries of the running Debian that the unpacked tools link to (Nsight Compute needs none).
install_libraries() {
  libs="libssh-4 libglib2.0-0 libgl1 libegl1 libxkbcommon0 libfontconfig1 libdbus-1-3 libnss3 libgssapi-krb5-2 libpfm4 libopengl0"
  missing=
  for lib in $libs; do
    dpkg -s "$lib" >/dev/null 2>&1 || dpkg -s "${lib}t64" >/dev/null 2>&1 || missing="$missing $lib"
  done
  [ -n "$missing" ] || return 0
  [ "$WITH_LIBS" = yes ] || { say "missing libraries (--no-libs given):$missing"; return 0; }
  [ "$(id -u)" = 0 ] || die "Nsight Systems needs these libraries, install them as root:$missing"
  # A fresh machine may have no package lists yet: fetch them only when needed.
  # shellcheck disable=SC2086
  DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $missing ||
    { apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $missing; }
}

fetch_and_unpack() { # suite directory
  work=$2.fetch
  rm -rf "$work"; mkdir -p "$work/lists/partial" "$work/debs"
  printf 'deb [signed-by=%s] %s %s non-free\n' "$KEYRING" "$MIRROR" "$1" >"$work/x.list"
  pkgs=$(packages nsight-systems-target nsight-compute-target)
  case "$1 $TOOLS" in experimental*nsys*) pkgs="$pkgs libarrow500 libparquet500" ;; esac
  # Apt state of its own: the machine's lists, sources and installed packages neither change nor matter.
  : >"$work/status"
  apt_own="-o Dir::Etc::sourcelist=$work/x.list -o Dir::Etc::sourceparts=- -o Dir::State::lists=$work/lists"
  apt_own="$apt_own -o Dir::State::status=$work/status"
  [ "$(id -u)" != 0 ] || apt_own="$apt_own -o APT::Sandbox::User=root"
  # shellcheck disable=SC2086
  (cd "$work/debs" && apt-get -q $apt_own -o Dir::Cache="$work" update && apt-get -q $apt_own -o Dir::Cache="$work" download $pkgs)
  rm -rf "$2.new"; mkdir -p "$2.new"
  for deb in "$work"/debs/*.deb; do dpkg -x "$deb" "$2.new"; done
  rm -rf "$2"; mv "$2.new" "$2"; rm -rf "$work"
}

fix_up_nsys() { # suite directory
  lib=$2/usr/lib
  target=$lib/x86_64-linux-gnu/nsight-systems
  host=$lib/nsight-systems/host-linux-x64
  [ -d "$host" ] || return 0
  ln -sfn ../../nsight-systems/host-linux-x64 "$target/host-linux-x64"                    # the importer
  [ ! -e /usr/lib/x86_64-linux-gnu/libssh.so.4 ] || ln -sfn /usr/lib/x86_64-linux-gnu/libssh.so.4 "$lib/x86_64-linux-gnu/libssh.so.4"
  for module in "$target"/target-linux-x64/python/lib/*.py; do                              # `nsys stats` imports these
    [ -e "$module" ] || continue
    [ -e "$host/python/lib/${module##*/}" ] || ln -s "$module" "$host/python/lib/"
  done
  if [ "$1" = experimental ]; then
    for name in arrow parquet; do ln -sfn "$lib/x86_64-linux-gnu/lib$name.so.500" "$host/"; done
  fi
}

unpack() { # suite
  dir=$PREFIX/$1
  complete=yes
  for tool in $TOOLS; do [ -e "$dir/usr/bin/$tool" ] || complete=no; done
  if [ $complete = no ]; then
    # A tool that is already there is kept: fetch both.
    for tool in nsys ncu; do [ ! -e "$dir/usr/bin/$tool" ] || case " $TOOLS " in *" $tool "*) ;; *) TOOLS="$TOOLS $tool" ;; esac; done
    mkdir -p "$PREFIX"
    fetch_and_unpack "$1" "$dir"
  fi
  case $TOOLS in *nsys*) install_libraries; fix_up_nsys "$1" "$dir" ;; esac
}

check() { # directory with the programs
  for tool in $TOOLS; do
    version=$("$1/$tool" --version 2>/dev/null | grep -i version | head -n 1) || true
    [ -n "$version" ] || die "$1/$tool does not run"
    say "$1/$tool: $version"
  done
}

WANTED=$TOOLS
if [ "$WITH_APT" = yes ]; then install_apt; check /usr/bin; fi
for suite in $SUITES; do TOOLS=$WANTED; unpack "$suite"; check "$PREFIX/$suite/usr/bin"; done
