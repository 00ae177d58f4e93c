#!/bin/sh
# Slurm Prolog (or a part of yours): turns a job away only when this host is held, or when the agent found it unhealthy
# by a rule that a person promoted to act. It fails open: a missing, stale, foreign or broken verdict lets the job start.
#
# Each run adds one byte to hook.pass, hook.unknown or hook.refused in the run folder: their sizes are the counts.

run_dir=${PASSMUSTER_RUN_DIR:-/run/passmuster}
boot_file=${PASSMUSTER_BOOT_ID_FILE:-/proc/sys/kernel/random/boot_id}

finish() { # outcome, exit code
    { printf . >>"$run_dir/hook.$1"; } 2>/dev/null
    exit "$2"
}

line=
# -f is false for a pipe, on which a read would wait; 512 bytes are more than the agent writes.
[ -f "$run_dir/verdict.line" ] && line=$(head -c 512 "$run_dir/verdict.line" 2>/dev/null | tr -cd ' -~')
boot=
[ -r "$boot_file" ] && read -r boot <"$boot_file"

set -f # the line is words, never patterns
IFS=' '
# shellcheck disable=SC2086
set -- $line
state=${1-} refuse=${2-} until=${3-} of_boot=${4-}

[ -n "$boot" ] && [ "$of_boot" = "$boot" ] || finish unknown 0
case $until in '' | *[!0-9]* | ????????????*) finish unknown 0 ;; esac # more digits would overflow the comparison
[ "$(date +%s)" -lt "$until" ] || finish unknown 0

case $state,$refuse in
unhealthy,1)
    shift 4
    printf 'passmuster: this host does not pass: %s\n' "$*" >&2
    finish refused 1
    ;;
healthy,0 | degraded,0 | unhealthy,0) finish pass 0 ;;
esac
finish unknown 0
