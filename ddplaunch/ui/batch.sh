#!/bin/bash{{ " -l" if batch.setup }}
# {{ about }}; written by `ddplaunch submit`.
# To change and submit it by hand: `sbatch FILE` in the directory where the training starts.
{% for directive in directives %}
#SBATCH {{ directive }}
{% endfor %}

{% if batch.setup %}
set -e  # a line of the setup that fails ends the job
{% for line in batch.setup %}
{{ line }}
{% endfor %}
set +e

{% endif %}
{% if inside_of_a_job %}
# It was submitted inside of another job, whose settings srun would take for its own.
unset SLURM_CPU_BIND SLURM_CPU_BIND_LIST SLURM_CPU_BIND_TYPE SLURM_CPU_BIND_VERBOSE SLURM_TRES_PER_TASK \
  SLURM_CPUS_PER_TASK SLURM_MEM_PER_NODE

{% endif %}
# One task on each node; ddplaunch learns from Slurm what it got. A task that fails ends all.
{% if batch.requeue_on %}
{% set name, seconds = batch.requeue_on %}
# {{ name }} comes {{ seconds }} s before the time limit, to this script, and srun hands it on to the ranks.
# A step that still runs {{ requeue_s }} s before the limit, or that failed by then, is queued again.
hand_on() {
  [ -n "$told" ] && return
  told=yes
  kill -s {{ name }} "$step"
  (trap 'kill $!' TERM; sleep {{ [1, seconds - requeue_s] | max }} & wait $! && scontrol requeue "$SLURM_JOB_ID") &
  late=$!
}
told= late=
trap hand_on {{ name }}
{% endif %}
{{ batch.step | join(" ") }} \
  {{ command | join("\n  ") }}{{ " &" if batch.requeue_on }}
{% if batch.requeue_on %}
{# wait returns early when a signal arrives #}
step=$!
wait "$step"; status=$?
while kill -0 "$step" 2>/dev/null; do wait "$step"; status=$?; done
[ -n "$late" ] && kill "$late" 2>/dev/null
if [ -n "$told" ] && [ "$status" -ne 0 ]; then
  scontrol requeue "$SLURM_JOB_ID" && sleep 60  # Slurm ends this script; its own end would count as the job's
fi
exit "$status"
{% endif %}
{% if batch.requeue_after_s is not none %}
status=$?
# Slurm requeues after preemption and lost nodes; after the time limit somebody has to ask for it.
if [ "$status" -ne 0 ] && [ "$SECONDS" -ge {{ batch.requeue_after_s }} ]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
{% endif %}
