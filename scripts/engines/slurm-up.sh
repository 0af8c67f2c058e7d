#!/bin/sh
# A real Slurm on one machine: two nodes with two (made-up) GPUs each, with accounting. For tests; needs root and Debian's
# slurm-wlm, munge, slurmdbd and mariadb-server (scripts/engines/install-slurm-debian.sh).
#
#   slurm-up.sh DIR [PORT]     start it below DIR; PORT and the nine above it are used (default 17100)
#   . DIR/env.sh               what a client needs: SLURM_CONF
#   slurm-down.sh DIR          end it
set -eu
dir=$(realpath -m "$1"); port=${2:-17100}
host=$(hostname -s)
mkdir -p "$dir"; cd "$dir"
mkdir -p log pid state spool-n1 spool-n2 db

# munge: Debian's package made the key; one daemon serves every cluster of the machine.
if ! munge -n >/dev/null 2>&1; then
  [ -s /etc/munge/munge.key ] || { dd if=/dev/urandom bs=1 count=1024 2>/dev/null > /etc/munge/munge.key; chown munge: /etc/munge/munge.key; chmod 400 /etc/munge/munge.key; }
  install -d -o munge -g munge -m 0755 /run/munge
  runuser -u munge -- /usr/sbin/munged
fi

# A database of its own, on a socket only: without accounting submitit waits for ever for a cancelled job.
[ -d db/mysql ] || mariadb-install-db --user=root --datadir="$dir/db" --skip-test-db --auth-root-authentication-method=socket > log/mariadb-install.log 2>&1
setsid mariadbd --no-defaults --user=root --datadir="$dir/db" --socket="$dir/db.sock" --skip-networking --pid-file="$dir/pid/mariadbd" > log/mariadbd.log 2>&1 < /dev/null &
for _ in $(seq 100); do mariadb-admin --no-defaults --socket="$dir/db.sock" ping >/dev/null 2>&1 && break; sleep 0.2; done
mariadb --no-defaults --socket="$dir/db.sock" -e 'create database if not exists slurm_acct_db'

for number in 0 1 2 3; do [ -e "fakegpu$number" ] || mknod "fakegpu$number" c 1 3; done
cat > gres.conf <<CONF
NodeName=n1 Name=gpu File=$dir/fakegpu[0-1]
NodeName=n2 Name=gpu File=$dir/fakegpu[2-3]
CONF
echo "CgroupPlugin=cgroup/v1" > cgroup.conf
cat > slurmdbd.conf <<CONF
AuthType=auth/munge
DbdHost=localhost
DbdPort=$((port + 1))
SlurmUser=root
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=slurm_acct_db
LogFile=$dir/log/slurmdbd.log
PidFile=$dir/pid/slurmdbd
CONF
chmod 600 slurmdbd.conf
cat > slurm.conf <<CONF
ClusterName=fake
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$port
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=localhost
AccountingStoragePort=$((port + 1))
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
GresTypes=gpu
ReturnToService=2
MpiDefault=none
SwitchType=switch/none
MailProg=/bin/true
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=2,bf_interval=2
SlurmdTimeout=10
KillWait=20
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool-%n
SlurmctldPidFile=$dir/pid/slurmctld
SlurmdPidFile=$dir/pid/slurmd-%n
SlurmctldLogFile=$dir/log/slurmctld.log
SlurmdLogFile=$dir/log/slurmd-%n.log
NodeName=n1 NodeHostname=$host NodeAddr=127.0.0.1 Port=$((port + 2)) CPUs=2 RealMemory=6000 Gres=gpu:2 State=UNKNOWN
NodeName=n2 NodeHostname=$host NodeAddr=127.0.0.1 Port=$((port + 3)) CPUs=2 RealMemory=6000 Gres=gpu:2 State=UNKNOWN
PartitionName=debug Nodes=n[1-2] Default=YES MaxTime=INFINITE State=UP
CONF
echo "export SLURM_CONF=$dir/slurm.conf" > env.sh
SLURM_CONF=$dir/slurm.conf; export SLURM_CONF

MYSQL_UNIX_PORT="$dir/db.sock" slurmdbd
for _ in $(seq 100); do sacctmgr -n list cluster >/dev/null 2>&1 && break; sleep 0.2; done
sacctmgr -i add cluster fake >/dev/null 2>&1 || true
slurmctld -f "$dir/slurm.conf"
slurmd -f "$dir/slurm.conf" -N n1
slurmd -f "$dir/slurm.conf" -N n2
for _ in $(seq 150); do
  [ "$(sinfo -h -o '%t' -N 2>/dev/null | grep -c idle)" = 2 ] && { sinfo -N; exit 0; }
  sleep 0.2
done
echo "the nodes did not come up:" >&2; sinfo -N >&2 || true; tail -n 5 log/*.log >&2; exit 1
