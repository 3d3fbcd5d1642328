#!/bin/bash
# Pretraining under SLURM: one torchrun on each machine. A job whose time is over, or that is preempted, saves a
# checkpoint, waits in the queue again, and continues. For example:
#   sbatch recipes/slurm.sh run_mlm.py paper/recipes/table6/gmlp-base.yaml recipes/gpu.yaml --output_dir /scratch/me/out
# The output folder must be on a disk that all machines share. Change these lines to suit your cluster.
#SBATCH --job-name=hf-gmlp
#SBATCH --nodes=8
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
# Three minutes before the time is over, this script gets SIGTERM.
#SBATCH --signal=B:TERM@180

set -uo pipefail
export OMP_NUM_THREADS=1
# Where the machines have no network, prepare data, tokenizer and checkpoint in the cache before:
# export HF_HUB_OFFLINE=1

stopped=
# Forward the signal to torchrun on every machine, which forwards it to the processes. They save after the optimizer
# step, within torchrun's --shutdown-timeout (from torch 2.14 on) of 30 seconds. Set --save_steps for larger models.
trap 'stopped=1; scancel --signal=TERM "$SLURM_JOB_ID"' TERM

head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun --kill-on-bad-exit=0 torchrun --nnodes="$SLURM_NNODES" --nproc-per-node="${SLURM_GPUS_ON_NODE:-8}" \
    --rdzv-backend=c10d --rdzv-endpoint="$head:29500" --rdzv-id="$SLURM_JOB_ID" "$@" --enable_jit_checkpoint &
wait $!
status=$?
if [[ -n $stopped ]]; then
    # The signal ended the first wait.
    wait
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
