#!/bin/sh
# Slurm, its accounting and what they need, from Debian (25 s). As root.
set -eu
command -v slurmctld >/dev/null && command -v slurmdbd >/dev/null && command -v mariadbd >/dev/null && exit 0
apt-get update -q
# Services of the packages are not started: tests start their own, below a directory of theirs.
printf '#!/bin/sh\nexit 101\n' > /usr/sbin/policy-rc.d; chmod +x /usr/sbin/policy-rc.d
trap 'rm -f /usr/sbin/policy-rc.d' EXIT
DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends slurm-wlm munge slurmdbd mariadb-server
