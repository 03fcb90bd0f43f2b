#!/usr/bin/env bash
# A Slurm of one node on this machine, for tests: no systemd, no cgroups, no accounting.
#
#   scripts/slurm-for-tests.sh packages        the Debian packages that it needs, for apt-get install
#   scripts/slurm-for-tests.sh start FOLDER    start below FOLDER; prints the line that a shell has to evaluate
#   scripts/slurm-for-tests.sh stop FOLDER     end what was started below FOLDER
#
# Partitions: `main` (default), `low` (whose jobs give way to `high` and are queued again), `grace` (the same with 20
# seconds' notice) and `high`. It runs as root, as Slurm's daemons do; 4 CPUs, 64 GB and 2 GPUs are pretended,
# whatever there are; torch sees no GPU, so a run trains without cluster.gpus_per_node.
set -euo pipefail

start() {
  local root=$1 host ports daemon
  for daemon in munged slurmctld slurmd; do
    command -v "$daemon" >/dev/null || { echo "$daemon is missing: apt-get install $("$0" packages)" >&2; exit 1; }
  done
  host=$(hostname -s)
  mkdir -p "$root"/{spool,state,log,run,gpu}
  touch "$root"/gpu/nvidia{0,1}
  printf 'AutoDetect=off\nName=gpu File=%s/gpu/nvidia[0-1]\n' "$root" >"$root/gres.conf"
  chmod 755 "$root" "$root/run"
  # The tests may run beside another Slurm: take two ports that nobody listens on.
  ports=$(python3 -c '
import socket
free = [socket.socket() for _ in range(2)]
[each.bind(("127.0.0.1", 0)) for each in free]
print(*[each.getsockname()[1] for each in free])')
  write_conf "$root" "$host" ${ports% *} ${ports#* } >"$root/slurm.conf"
  export SLURM_CONF=$root/slurm.conf

  (umask 077 && head -c 128 /dev/urandom >"$root/munge.key")
  munged --force --key-file="$root/munge.key" --socket="$root/run/munge.socket" --pid-file="$root/run/munged.pid" \
    --log-file="$root/log/munged.log" --seed-file="$root/run/munge.seed"
  slurmctld -i
  until_true scontrol ping
  slurmd -N "$host"
  until_true sh -c 'sinfo --noheader --format=%T | grep --quiet --line-regexp idle'
  echo "export SLURM_CONF=$SLURM_CONF"
}

write_conf() {
  local root=$1 host=$2 controller_port=$3 node_port=$4
  cat <<CONF
ClusterName=tests
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$root/run/munge.socket
CryptoType=crypto/munge
SlurmctldPort=$controller_port
SlurmdPort=$node_port
StateSaveLocation=$root/state
SlurmdSpoolDir=$root/spool
SlurmctldPidFile=$root/run/slurmctld.pid
SlurmdPidFile=$root/run/slurmd.pid
SlurmctldLogFile=$root/log/slurmctld.log
SlurmdLogFile=$root/log/slurmd.log
# What a container lacks: cgroups, a process tracker, MPI, a database.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
# Everything at once: tests should not wait for a scheduler's next round.
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,bf_interval=1,sched_interval=1,sched_min_interval=0
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
KillWait=10
MinJobAge=300
JobRequeue=1
ReturnToService=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
GresTypes=gpu
NodeName=$host NodeAddr=127.0.0.1 CPUs=4 RealMemory=65536 Gres=gpu:2 State=UNKNOWN
PartitionName=DEFAULT Nodes=$host MaxTime=INFINITE State=UP
PartitionName=main Default=YES PriorityTier=5 PreemptMode=OFF
PartitionName=low PriorityTier=1 PreemptMode=REQUEUE
PartitionName=grace PriorityTier=1 PreemptMode=REQUEUE GraceTime=20
PartitionName=high PriorityTier=9 PreemptMode=OFF
CONF
}

until_true() {
  for _ in $(seq 150); do
    if timeout 5 "$@" >/dev/null 2>&1; then return; fi
    sleep 0.2
  done
  echo "Slurm did not start: $* still fails; see the logs below $SLURM_CONF's folder" >&2
  exit 1
}

stop() {
  local root=$1 daemon pid
  for daemon in slurmd slurmctld munged; do
    [ -s "$root/run/$daemon.pid" ] || continue
    pid=$(cat "$root/run/$daemon.pid")
    # The file may be old and the number taken by another process since.
    [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = "$daemon" ] || continue
    kill "$pid"
    for _ in $(seq 50); do [ -e "/proc/$pid" ] || break; sleep 0.1; done
    if [ -e "/proc/$pid" ]; then kill -9 "$pid"; fi
  done
}

case "${1:-}" in
  packages) echo slurm-wlm munge ;;
  start | stop) "$1" "${2:?a folder for its files}" ;;
  *) sed -n '2,10p' "$0" >&2; exit 2 ;;
esac
