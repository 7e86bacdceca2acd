"""Runs a module with times that are the process's own CPU seconds: what a machine busy with other work does not change.

    python eval/cpu_clock.py mmsmart.eval --dataset mmsmart-charts --limit 20 --mode long --threads 1

On one torch thread a forward's CPU time is about its time on an idle machine; on several, or on a GPU, it is not. Costs
that a policy measures are CPU seconds too; point ``XDG_CACHE_HOME`` elsewhere, so that they are not kept for real runs.
"""

import runpy
import sys
import time

if __name__ == "__main__":
    time.perf_counter = time.process_time
    runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
