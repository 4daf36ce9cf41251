"""The part of `bench/gpu_real.py` that needs the GPU: what is not measured yet is measured and kept."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

import msgspec

from bench.gpu_engine import serve, serving, step_times
from bench.gpu_real_plan import FACTS, Facts, Study
from bench.headway_real_engine import STOCK
from bench.progress import say
from bench.serving_engine import ServingEngine
from headway.engine.machine import machine_name, vllm_version
from headway.engine.servers.server_command import is_cpu_build
from headway.errors import ConfigError
from headway.whole_file import write_whole

BACKLOG = 600
"""Requests whose throughput is capacity."""


def measure(study: Study) -> None:
    """Do what is not kept yet; the engine is started if anything is left."""
    study.out.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        engines: list[ServingEngine] = []

        def engine() -> ServingEngine:
            if not engines:
                if is_cpu_build():
                    raise ConfigError(
                        f"vLLM computes on the CPU here, and not all runs are in {study.out}; accepted: vLLM for GPUs"
                    )
                say("starting vLLM")
                engines.append(stack.enter_context(serving(study.machine, study.out, study.vllm_flags)))
            return engines[0]

        if not (study.out / FACTS).exists():
            write_whole(study.out / FACTS, msgspec.json.encode(first_facts(study, engine())))
        for run in study.runs():
            file = run.file(study.out)
            if not file.exists():
                stream = study.stream(run.load, run.seed, run.kind)
                found = serve(engine(), run.contender, run.seats, stream, run.seed)
                write_whole(file, msgspec.json.encode(found))
                last_s = max(each.finished_s for each in found.served)
                say(f"{file.name}: {len(stream)} requests, the last ended after {last_s:.1f} s")


def first_facts(study: Study, engine: ServingEngine) -> Facts:
    """Steps alone, then capacity."""
    steps = step_times(engine)
    say(
        "steps: "
        + ", ".join(
            f"{each.batch} x {each.new_tokens} beside {each.decodes}: {each.seconds * 1e3:.1f} ms"
            for each in steps
        )
    )
    backlog = [replace(request, id=f"{at}") for at, request in enumerate(study.workload.backlog()[:BACKLOG])]
    served = serve(engine, STOCK, engine.worker_slots, backlog, 0).served
    capacity_rps = len(served) / max(each.finished_s for each in served)
    say(f"capacity: {capacity_rps:.2f} requests a second; {engine.num_blocks} KV blocks")
    return Facts(
        measured_on=machine_name(),
        vllm=vllm_version(),
        workload=study.workload.name,
        seconds=study.seconds,
        capacity_rps=capacity_rps,
        num_blocks=engine.num_blocks,
        worker_slots=engine.worker_slots,
        tokens_a_step=engine.tokens_a_step,
        asynchronous=engine.asynchronous,
        steps=steps,
    )
