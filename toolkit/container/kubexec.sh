#!/bin/sh
# Replaces ssh for launchers: with the configuration of the cluster, and the job tag on the remote side.
#
#     kubexec.sh [ssh options] [user@]HOST COMMAND...
#
# Installed as /etc/mpi/kubexec.sh in every container, because Horovod hands its own ssh checks to an agent of
# this name. A launcher calls it once or twice for each host, at the start of every job: a shell script starts
# in 2 ms, and a program in Python in 30 ms.
root=${TOOLKIT_ROOT:-/run/toolkit}

refuse() {
  echo "[toolkit] $1" >&2
  exit 64
}

# ssh options are dropped: port, user, key and host-key checking are set in the ssh_config of the cluster, and
# those of a launcher (horovodrun turns host-key checking off) must not win.
while [ "${1#-}" != "${1-}" ]; do
  option=${1#-}
  shift
  [ "$option" != - ] || break
  # "-o Key=value" uses the next word, "-oKey=value" and "-p22" contain it, "-xp 22" bundles.
  while [ -n "$option" ]; do
    rest=${option#?}
    case ${option%"$rest"} in
      [BbcDEeFIiJLlmOoPpQRSWw])
        [ -n "$rest" ] || [ $# = 0 ] || shift
        break ;;
    esac
    option=$rest
  done
done
[ $# -ge 2 ] || refuse 'usage: kubexec.sh [ssh options] HOST COMMAND...'
host=${1##*@}
shift
# As with ssh, the words of the command are joined by blanks and interpreted by the remote shell.
command=$*

if [ -n "${TOOLKIT_JOB-}" ]; then
  case $TOOLKIT_JOB in
    [!A-Za-z0-9]* | *[!A-Za-z0-9._-]*) refuse "'$TOOLKIT_JOB' is not a job id" ;;
  esac
  # horovodrun first logs in to every host only to run `true`. In a job the leases log in to the same hosts, and
  # report a host that does not answer.
  [ "$command" != true ] || exit 0
  [ "${TOOLKIT_TRANSPORT-}" != exec ] || exec python3 "$root/inside/run.py" job.exec_mode "$host" "$command"
  tag="export TOOLKIT_JOB=$TOOLKIT_JOB"
  # The folder of this job for files of launchers has the same path on every host. rank.py restores TMPDIR.
  case ${TMPDIR-} in
    /tmp/toolkit-*[!0-9a-f]*) ;;
    /tmp/toolkit-*)
      tag="export TOOLKIT_TMPDIR=\"\${TMPDIR-}\" TOOLKIT_JOB=$TOOLKIT_JOB TMPDIR=$TMPDIR"
      tag="[ -d $TMPDIR ] || mkdir -p -m 700 $TMPDIR; $tag" ;;
  esac
  # Statements, not a prefix: the command of Open MPI can be a list or a subshell.
  command="$tag; $command"
fi
export TOOLKIT_TO="$host"
exec ssh -F "$root/conf/ssh_config" -- "$host" "$command"
