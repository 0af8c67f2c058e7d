#!/usr/bin/env bash
# Profile kernels of any program with Nsight Compute, on a machine that has only bash and ncu.
#
#   ncu-profile-kernels.sh --kernel-regex 'flash_fwd.*' -- ./bench --size 2048
#
# Defaults mirror the Python script and the runner's preset ncu.default: its four sections; its metrics on request
# (--metrics preset), none by default.
# Every argument travels in an array and is never evaluated again, so a regular expression may hold
# parentheses, backslashes, pipes, quotes and spaces.
if [ -z "${BASH_VERSION:-}" ]; then # started as `sh ncu-profile-kernels.sh`
  command -v bash >/dev/null 2>&1 || { echo "error: this script needs bash" >&2; exit 4; }
  exec bash "$0" "$@"
fi
set -euo pipefail

DEFAULT_SECTIONS="SpeedOfLight MemoryWorkloadAnalysis Occupancy SchedulerStats"
DEFAULT_METRICS="gpu__time_duration.sum,\
dram__bytes_read.sum,\
dram__bytes_write.sum,\
dram__bytes.sum.per_second,\
sm__throughput.avg.pct_of_peak_sustained_elapsed,\
dram__throughput.avg.pct_of_peak_sustained_elapsed,\
sm__ops_path_tensor_src_bf16_dst_fp32.sum,\
sm__ops_path_tensor_src_fp16_dst_fp32.sum,\
sm__ops_path_tensor_src_fp16_dst_fp16.sum,\
sm__ops_path_tensor_src_fp16.sum,\
sm__ops_path_tensor_src_fp8.sum,\
sm__ops_path_tensor_src_tf32_dst_fp32.sum,\
launch__waves_per_multiprocessor,\
launch__registers_per_thread"

usage() {
  cat <<'USAGE'
usage: ncu-profile-kernels.sh [options] -- PROGRAM [ARGUMENT …]
  --kernel-regex REGEX      profile kernels whose name matches
  --kernel-config YAML      kernels as extract-top-kernels.py writes them
  --topk N                  only the first N kernels of --kernel-config
  --extra-sections S [S …]  sections besides SpeedOfLight MemoryWorkloadAnalysis Occupancy SchedulerStats
  --metrics A,B             also these metrics; preset: those of the preset ncu.default (default: none)
  --launch-skip N           matching launches to leave out first
  --launch-count N          most launches to profile (default: 1; 20 per kernel with --kernel-config)
  --kernel-name-base BASE   function, demangled or mangled
  --nvtx-include EXPR       only inside this range, in ncu's syntax (decode/)
  --output-dir DIR          default: ncu-<time>
  --ncu PATH                which ncu (default: $LLM_PERF_OPT_NCU, or ncu on PATH)
  --dry-run                 print the command and stop
USAGE
}

die() { printf 'error: %s\n' "$1" >&2; exit "${2:-2}"; }
need() { [ "$1" -ge 2 ] || die "$2 needs a value"; }
# A word the way a shell reads it back: for cmd.txt.
quoted() { printf '%q ' "$@"; }
# Text inside a JSON string.
json() { printf '%s' "$1" | sed -e 's/\\/\\\\/g' -e 's/"/\\"/g' -e 's/\t/\\t/g' | tr -d '\000-\010\013-\037' | awk 'NR > 1 { printf "\\n" } { printf "%s", $0 }'; }

regex="" config="" topk="" metrics="" skip="" count="" base="" out="" dry=no
ncu="${LLM_PERF_OPT_NCU:-ncu}"
sections=() ranges=()
read -r -a sections <<<"$DEFAULT_SECTIONS"
while [ $# -gt 0 ]; do
  case "$1" in
    --kernel-regex) need $# "$1"; regex=$2; shift 2 ;;
    --kernel-config) need $# "$1"; config=$2; shift 2 ;;
    --topk) need $# "$1"; topk=$2; shift 2 ;;
    --extra-sections)
      shift
      while [ $# -gt 0 ] && [ "${1#--}" = "$1" ]; do sections+=("$1"); shift; done ;;
    --metrics) need $# "$1"; metrics=$2; shift 2 ;;
    --launch-skip) need $# "$1"; skip=$2; shift 2 ;;
    --launch-count) need $# "$1"; count=$2; shift 2 ;;
    --kernel-name-base) need $# "$1"; base=$2; shift 2 ;;
    --nvtx-include) need $# "$1"; ranges+=("$2"); shift 2 ;;
    --output-dir) need $# "$1"; out=$2; shift 2 ;;
    --ncu) need $# "$1"; ncu=$2; shift 2 ;;
    --dry-run) dry=yes; shift ;;
    -h | --help) usage; exit 0 ;;
    --) shift; break ;;
    *) die "unknown option $1 (the program goes after --)" ;;
  esac
done
[ $# -gt 0 ] || die "no program to profile; put it after --"
for number in "$topk" "$skip" "$count"; do
  case "$number" in *[!0-9]*) die "not a number: $number" ;; esac
done
[ -z "$regex" ] || [ -z "$config" ] || die "--kernel-regex and --kernel-config exclude each other"
[ -z "$topk" ] || [ -n "$config" ] || die "--topk needs --kernel-config"

# The list holds one "  regex: …" per kernel, in YAML's plain, '…' or "…" style.
config_regexes() {
  awk '
    /^[ -]+regex:/ {
      sub(/^[ -]+regex:[ ]*/, "")
      if (/^\x27/) { sub(/^\x27/, ""); sub(/\x27[ ]*$/, ""); gsub(/\x27\x27/, "\x27") }
      else if (/^"/) { sub(/^"/, ""); sub(/"[ ]*$/, ""); gsub(/\\"/, "\""); gsub(/\\\\/, "\\") }
      print
    }' "$1"
}
kernels=0
if [ -n "$config" ]; then
  [ -r "$config" ] || die "cannot read $config" 3
  while IFS= read -r line; do
    [ -n "$topk" ] && [ "$kernels" -ge "$topk" ] && break
    regex="${regex:+$regex|}($line)"
    kernels=$((kernels + 1))
  done < <(config_regexes "$config")
  [ "$kernels" -gt 0 ] || die "$config lists no kernel with a regex" 3
  base="${base:-demangled}"
fi
: "${count:=$((kernels > 0 ? 20 * kernels : 1))}"

[ "$dry" = yes ] || command -v "$ncu" >/dev/null || die "$ncu is not installed; give --ncu PATH" 4
[ "$metrics" != preset ] || metrics=$DEFAULT_METRICS
if [ -z "$out" ]; then
  # A directory of its own, also for two starts in one second: only one of them makes it.
  wanted="$PWD/ncu-$(date +%Y%m%d-%H%M%S)" number=1
  out=$wanted
  while [ "$dry" = no ] && ! mkdir "$out" 2>/dev/null; do
    [ -d "$out" ] || die "cannot make $out" 4
    number=$((number + 1))
    out="$wanted-$number"
  done
fi
case "$out" in /*) ;; *) out="$PWD/$out" ;; esac

command=("$ncu" --target-processes all)
[ ${#ranges[@]} -eq 0 ] || command+=(--nvtx)
for range in ${ranges[@]+"${ranges[@]}"}; do command+=(--nvtx-include "$range"); done
for section in "${sections[@]}"; do command+=(--section "$section"); done
[ -z "$metrics" ] || command+=(--metrics "$metrics")
if [ -n "$regex" ]; then
  [ -z "$base" ] || command+=(--kernel-name-base "$base")
  command+=(--kernel-name "regex:$regex")
fi
[ -z "$skip" ] || command+=(--launch-skip "$skip")
command+=(--launch-count "$count" --log-file "$out/logs/ncu.log" --force-overwrite --export "$out/run" "$@")

quoted "${command[@]}"; echo
[ "$dry" = no ] || exit 0
mkdir -p "$out/logs"
rm -f "$out/run.ncu-rep" "$out/logs/ncu.log"
version=$("$ncu" --version | sed -n 's/^Version //p')
{ echo "# Nsight Compute $version"; echo; printf 'cd %q &&\n' "$PWD"; quoted "${command[@]}"; echo; } >"$out/cmd.txt"
started=$(date -u +%Y-%m-%dT%H:%M:%SZ)
code=0
"${command[@]}" || code=$?

# The exit code says little: a report with kernels in it is success.
files=""
if [ -s "$out/run.ncu-rep" ]; then
  for page in raw details; do
    "$ncu" --import "$out/run.ncu-rep" --csv --page "$page" --print-units base --log-file "$out/$page.csv" && files="$files \"$page.csv\","
  done
  for section in "${sections[@]}"; do
    "$ncu" --import "$out/run.ncu-rep" --csv --page details --section "$section" --print-units base \
      --log-file "$out/section_$section.csv" && files="$files \"section_$section.csv\","
  done
fi
cat >"$out/provenance.json" <<JSON
{
  "command": "$(json "$(quoted "${command[@]}")")",
  "directory": "$(json "$PWD")",
  "ncu": {"path": "$(json "$(command -v "$ncu")")", "version": "$(json "$version")"},
  "host_system": "$(json "$(uname -sr)")",
  "started": "$started",
  "exit_code": $code,
  "sections": "$(json "${sections[*]}")",
  "kernel_regex": "$(json "$regex")",
  "files": [${files%,}]
}
JSON
if [ ! -s "$out/run.ncu-rep" ]; then
  grep -h '^==\(ERROR\|WARNING\)==' "$out/logs/ncu.log" >&2 || true
  if grep -q ERR_NVGPUCTRPERM "$out/logs/ncu.log" 2>/dev/null; then
    die "this user may not read GPU counters: https://developer.nvidia.com/ERR_NVGPUCTRPERM" 4
  fi
  die "ncu wrote no report; see $out/logs/ncu.log" 4
fi
echo "written: $out"
