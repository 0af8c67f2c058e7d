#!/bin/sh
# End what slurm-up.sh started below DIR: by the process ids it left there, nothing else.
set -u
dir=$(realpath -m "$1")
for name in slurmd-n1 slurmd-n2 slurmctld slurmdbd mariadbd; do
  file=$dir/pid/$name
  [ -s "$file" ] && kill "$(cat "$file")" 2>/dev/null
done
for _ in $(seq 50); do
  left=0
  for name in slurmd-n1 slurmd-n2 slurmctld slurmdbd mariadbd; do
    file=$dir/pid/$name
    [ -s "$file" ] && kill -0 "$(cat "$file")" 2>/dev/null && left=1
  done
  [ $left = 0 ] && exit 0
  sleep 0.2
done
exit 1
