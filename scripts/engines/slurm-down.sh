#!/bin/sh
# End what slurm-up.sh started below DIR: its jobs by Slurm itself, its daemons by the process ids they left there.
set -u
dir=$(realpath -m "$1")
daemons="slurmd-n1 slurmd-n2 slurmctld slurmdbd mariadbd"
SLURM_CONF=$dir/slurm.conf; export SLURM_CONF
timeout 10 scancel --signal=KILL --full --user="$(id -un)" 2>/dev/null
for _ in $(seq 50); do [ -z "$(timeout 5 squeue -h 2>/dev/null)" ] && break; sleep 0.2; done

is_up() { [ -s "$dir/pid/$1" ] && kill -0 "$(cat "$dir/pid/$1")" 2>/dev/null; }
for name in $daemons; do is_up "$name" && kill "$(cat "$dir/pid/$name")"; done
for _ in $(seq 50); do
  left=0
  for name in $daemons; do is_up "$name" && left=1; done
  [ $left = 0 ] && exit 0
  sleep 0.2
done
exit 1
