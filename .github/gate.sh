#!/bin/sh
# The gate of action.yml: runs what GATE names, shows its answer in the job's summary, and exits with its code.
# Inputs come as variables; nothing of them is read as a program.
set -u
report="${RUNNER_TEMP:-.}/llmsim-gate.txt"
: "${GITHUB_OUTPUT:=/dev/null}" "${GITHUB_STEP_SUMMARY:=/dev/null}"
folder=$(mktemp -d)

need() {
    for name in "$@"; do
        eval "value=\${$name:-}"
        [ -n "$value" ] || { echo "error: the input $(echo "$name" | tr A-Z_ a-z-) is missing; the gate $GATE needs it" >"$report"; return 2; }
    done
}

simulate() { # cluster file, run folder, more options
    cluster=$1 run=$2
    shift 2
    # shellcheck disable=SC2086  # options are words
    llmsim run --cluster-config "$cluster" --dataset "$DATASET" --run-dir "$run" --quiet "$@" ${OPTIONS:-} >>"$report" 2>&1
}

compare() { # what to compare with, run folder
    set -- diff "$1" "$2"
    while IFS= read -r rule; do
        [ -z "$rule" ] || set -- "$@" --fail-if "$rule"
    done <<RULES
${FAIL_IF:-}
RULES
    llmsim "$@" >>"$report" 2>&1
}

: >"$report"
case "${GATE:-}" in
diff)
    need BEFORE AFTER DATASET && simulate "$BEFORE" "$folder/before" && simulate "$AFTER" "$folder/after" &&
        compare "$folder/before" "$folder/after"
    ;;
validate)
    need LOG AFTER DATASET && simulate "$AFTER" "$folder/run" --arrivals "$LOG" &&
        llmsim validate "$LOG" "$folder/run" >>"$report" 2>&1 && compare "$LOG" "$folder/run"
    ;;
size)
    # shellcheck disable=SC2086  # arguments are words
    need ARGUMENTS && llmsim size $ARGUMENTS >>"$report" 2>&1
    ;;
*)
    echo "error: the input gate is \"${GATE:-}\"; give diff, size or validate" >"$report"
    (exit 2)
    ;;
esac
code=$?
rm -rf "$folder"
cat "$report"
{ echo '```text'; cat "$report"; echo '```'; } >>"$GITHUB_STEP_SUMMARY"
{ echo "exit-code=$code"; echo "report=$report"; } >>"$GITHUB_OUTPUT"
exit "$code"
