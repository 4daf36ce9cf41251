"""Request traces: reading, writing, arrival processes, length laws, generated workloads, scaling."""

from headway.traces.arrivals import AllAtOnce, ArrivalProcess, Fixed, Gamma, OnOff, Poisson
from headway.traces.formats import MOONCAKE_BLOCK_TOKENS
from headway.traces.lengths import (
    NAMED_LAWS,
    Constant,
    LengthLaw,
    LengthPair,
    LogNormal,
    Quantiles,
    Zipf,
)
from headway.traces.reader import read_trace
from headway.traces.request import TraceRequest, at_once, check_rate, scale_lengths, scale_rate, take
from headway.traces.sessions import closed_loop
from headway.traces.spec import load_trace, parse_workload
from headway.traces.workload import Workload, generate
from headway.traces.writer import write_trace

__all__ = [
    "MOONCAKE_BLOCK_TOKENS",
    "NAMED_LAWS",
    "AllAtOnce",
    "ArrivalProcess",
    "Constant",
    "Fixed",
    "Gamma",
    "LengthLaw",
    "LengthPair",
    "LogNormal",
    "OnOff",
    "Poisson",
    "Quantiles",
    "TraceRequest",
    "Workload",
    "Zipf",
    "at_once",
    "check_rate",
    "closed_loop",
    "generate",
    "load_trace",
    "parse_workload",
    "read_trace",
    "scale_lengths",
    "scale_rate",
    "take",
    "write_trace",
]
