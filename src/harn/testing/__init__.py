"""Tools for testing code that waits, without waiting.

`FakeClock` stands still until it is moved (or, with `autojump`, until nothing else can
run). `fresh_runtime()` is a runtime in memory on such a clock; `mock_time()` swaps the clock of
the runtime you are in. `VirtualTimeLoop` goes further and fakes the event loop's own time, for
code that calls `asyncio.sleep` itself. None of them jumps while real work is under way.

fake_clock.py     FakeClock, fresh_runtime, mock_time
virtual_loop.py   VirtualTimeLoop, run_virtual
simulate.py       simulate: consumers that are killed, paused and slowed by seed
simulated_process.py their processes: a clock and a store connection that can be disturbed
fake_provider.py  FakeModels: a model provider on loopback that follows a script
provider_answers.py its answers, as OpenAI and Anthropic write them
plugin.py         fixtures for pytest
"""

from harn.testing.fake_clock import FakeClock, fresh_runtime, mock_time
from harn.testing.simulate import SimulatedRun, Simulation, simulate
from harn.testing.virtual_loop import VirtualTimeLoop, run_virtual

__all__ = [
    "FakeClock",
    "SimulatedRun",
    "Simulation",
    "VirtualTimeLoop",
    "fresh_runtime",
    "mock_time",
    "run_virtual",
    "simulate",
]
