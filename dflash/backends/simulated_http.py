"""The simulated engine as a real HTTP server that speaks vLLM's or SGLang's protocol, on the real clock.

Inside a running event loop: `async with simulated_server("vllm", scenario) as server:`; from blocking code, in a
thread of its own: `with simulated_server_thread("sglang") as server:`; as a process: see `simulated.main`. Beside
the engine's own routes, `GET /simulated/log` gives what the server knows of every request, and
`POST /simulated/reset` makes it forget everything.
"""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, Protocol

import orjson
from aiohttp import web

from dflash.backends.scenario import Fault, Scenario
from dflash.backends.simulated_counters import Counters, RequestLog
from dflash.backends.simulated_engine import Job, SimulatedEngine
from dflash.backends.simulated_faults import GARBAGE_EVENT, MID_ANSWER, FaultBook, Gate, oversized_event
from dflash.backends.simulated_port import Port
from dflash.backends.simulated_requests import ApiError, Call, Format
from dflash.backends.simulated_stream import EventStream
from dflash.errors import UsageError

_MAX_BODY_BYTES = 256 * 1024 * 1024
_CLOSING_S = 1.0
_KEEP_ALIVE_S = 5.0  # as the engines' servers have it

Parse = Callable[[Mapping[str, Any], web.Request], Call]


class Dialect(Protocol):
    """One engine's protocol."""

    cache_block_tokens: int
    verifies_every_step: bool

    def routes(self) -> list[web.RouteDef]:
        """The engine's own routes."""
        ...

    def error_document(self, error: ApiError, path: str) -> Mapping[str, Any]:
        """The body of a refused request."""
        ...


class SimulatedServer:
    """One server. `start` and `stop` belong to one event loop; reading is safe from any thread.

    Attributes:
        url: where it listens, without a path.
        engine: from `start` on.
    """

    def __init__(
        self,
        protocol: str,
        scenario: Scenario | None = None,
        *,
        arm: str = "baseline",
        block_size: int | None = None,
        time_scale: float = 1.0,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        if protocol not in ("vllm", "sglang"):
            raise UsageError(f"unknown protocol {protocol!r}", "choose vllm or sglang")
        self.protocol, self.scenario, self.arm = protocol, scenario or Scenario(), arm
        self.faults = FaultBook(self.scenario.faults)
        self._block_size, self._time_scale = block_size, time_scale
        self._num_arrived = 0
        self._port = Port(host, port)

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    @property
    def host(self) -> str:
        return self._port.host

    @property
    def port(self) -> int:
        return self._port.number

    @property
    def is_listening(self) -> bool:
        return self._port.is_open

    def log(self) -> list[RequestLog]:
        """What is known of the last requests (`scenario.server.log_requests` of them), in order of arrival."""
        return list(self.engine.log)

    @property
    def counters(self) -> list[Counters]:
        """By DP rank."""
        return [rank.counters for rank in self.engine.ranks]

    def reset(self) -> None:
        """Forget log, counters, cache, request numbers, and which faults have hit; drops what still runs."""
        self.engine.end_all("reset")
        self.engine.log.clear()
        self.engine.reset_counters()
        self.engine.forget()
        self.faults.clear()
        self._num_arrived = 0
        self._refuse_if_due()

    async def start(self) -> None:
        """Listen.

        Raises:
            UsageError: see `SimulatedEngine`.
            UnavailableError: the port cannot be had.
        """
        dialect = _make_dialect(self)
        self.dialect = dialect
        self.engine = SimulatedEngine(
            self.scenario,
            arm=self.arm,
            block_size=self._block_size,
            cache_block_tokens=dialect.cache_block_tokens,
            time_scale=self._time_scale,
            verifies_every_step=dialect.verifies_every_step,
        )
        self.started_at = time.time()
        self.epoch_s = time.time() - time.perf_counter()  # added to a stamp, it is time since the epoch
        app = web.Application(client_max_size=_MAX_BODY_BYTES)
        app.add_routes(dialect.routes())
        app.add_routes(
            [web.get("/simulated/log", self._get_log), web.post("/simulated/reset", self._post_reset)]
        )
        app.router.add_route("*", "/{path:.*}", self._not_found)
        self._runner = web.AppRunner(
            app,
            access_log=None,
            handler_cancellation=True,
            shutdown_timeout=_CLOSING_S,
            keepalive_timeout=_KEEP_ALIVE_S,
        )
        await self._runner.setup()
        assert self._runner.server is not None
        await self._port.open(self._runner.server)
        self._refuse_if_due()

    async def stop(self) -> None:
        """Close everything; safe to call twice."""
        self._port.close()
        self.engine.end_all("stopped")
        await self._runner.cleanup()

    def generation_route(self, path: str, parse: Parse) -> web.RouteDef:
        """A route that answers with tokens."""

        async def handle(request: web.Request) -> web.StreamResponse:
            return await self._generate(request, parse)

        return web.post(path, handle)

    def json_response(self, document: object, status: int = 200) -> web.Response:
        return web.Response(
            body=orjson.dumps(document),
            status=status,
            headers={"Content-Type": "application/json", "Server": "uvicorn"},
        )

    async def _generate(self, request: web.Request, parse: Parse) -> web.StreamResponse:
        arrival_ns = time.perf_counter_ns()
        try:
            call = parse(_read_object(await request.read()), request)
        except ApiError as error:
            return self.json_response(self.dialect.error_document(error, request.path), error.status)
        number, self._num_arrived = self._num_arrived, self._num_arrived + 1
        fault = self.faults.take(number, call.request_id, self.arm, call.prompt_text)
        log = RequestLog(
            number=number,
            request_id=call.request_id,
            route=request.path,
            is_stream=call.is_stream,
            arrival_ns=arrival_ns,
            fault=fault.action if fault else None,
        )
        self.engine.log.append(log)
        try:
            refusal = await self._fault_on_arrival(fault, log, request)
            if refusal is not None:
                return refusal
            return await self._answer(request, call, log, fault)
        finally:
            self._refuse_if_due()

    async def _fault_on_arrival(
        self, fault: Fault | None, log: RequestLog, request: web.Request
    ) -> web.Response | None:
        if fault is None:
            return None
        if fault.action == "counter_reset":
            self.engine.reset_counters()
        elif fault.action == "foreign_traffic":
            self.engine.foreign_traffic(fault.num_tokens)
        elif fault.action == "slow_headers":
            log.outcome = "client_left"  # unless it is still there afterwards
            await asyncio.sleep(fault.seconds or 0.0)
            log.outcome = "waiting"
        elif fault.action == "status":
            log.outcome, log.ended_ns = f"status {fault.status}", time.perf_counter_ns()
            error = ApiError(fault.message, status=fault.status)
            response = self.json_response(self.dialect.error_document(error, request.path), fault.status)
            if fault.retry_after_s is not None:
                response.headers["Retry-After"] = f"{fault.retry_after_s:g}"
            return response
        return None

    async def _answer(
        self, request: web.Request, call: Call, log: RequestLog, fault: Fault | None
    ) -> web.StreamResponse:
        answer = self.engine.answer(call.key, call.max_new_tokens, call.ignore_stop)
        job = self.engine.make_job(answer, call.prompt, log, fault)
        form = call.make_format(job)
        stream = EventStream(request, job, form) if call.is_stream else None
        if fault is not None and fault.action in MID_ANSWER:
            transport = request.transport
            cut = transport.close if transport is not None else lambda: None
            job.gate = Gate(self.engine, job, fault, form, stream, cut, self.restart)
        try:
            if stream is None:
                self.engine.submit(job)
                await job.done
                return self._document_response(job, form, fault)
            job.emit = stream.emit
            self.engine.submit(job)
            if not form.headers_at_once:
                await asyncio.wait((stream.begun, job.done), return_when=asyncio.FIRST_COMPLETED)
            await stream.open()
            await job.done
            return await stream.close()
        finally:
            self.engine.end(job, "client_left")

    def _document_response(self, job: Job, form: Format, fault: Fault | None) -> web.Response:
        action = fault.action if fault else None
        if action == "garbage":
            return web.Response(body=GARBAGE_EVENT[6:], content_type="application/json")
        if action == "oversized" and fault is not None:
            return web.Response(body=oversized_event(fault.size_bytes)[6:], content_type="application/json")
        if action == "error_event" and fault is not None:
            job.log.outcome = "error_event"
            error = ApiError(fault.message, status=500)
            return self.json_response(self.dialect.error_document(error, job.log.route), 500)
        if job.log.outcome != "done":
            return web.Response(status=500)  # the connection is closed already
        return self.json_response(form.document())

    def restart(self, seconds: float) -> None:
        """Cut every connection, lose counters and cache, and be away for `seconds`."""
        self.engine.end_all("restart")
        self.engine.reset_counters()
        self.engine.forget()
        self.started_at = time.time()
        self._port.cut_connections()
        self._port.close_for(seconds)

    def _refuse_if_due(self) -> None:
        fault = self.faults.refusal_before(self._num_arrived, self.arm)
        if fault is not None:
            self._port.close_for(fault.seconds or 0.0)

    async def _get_log(self, request: web.Request) -> web.Response:
        document = {
            "protocol": self.protocol,
            "arm": self.arm,
            "block_size": self.engine.block_size,
            "now_ns": time.perf_counter_ns(),
            "cpu_ns": time.process_time_ns(),  # of the server's process, all of its life
            "counters": [_counters_document(counters) for counters in self.counters],
            "requests": [log.document() for log in self.log()],
        }
        return self.json_response(document)

    async def _post_reset(self, request: web.Request) -> web.Response:
        self.reset()
        return self.json_response({"reset": True})

    async def _not_found(self, request: web.Request) -> web.Response:
        error = ApiError("Not Found", status=404)
        return self.json_response(self.dialect.error_document(error, request.path), 404)


@asynccontextmanager
async def simulated_server(
    protocol: str, scenario: Scenario | None = None, **settings: Any
) -> AsyncIterator[SimulatedServer]:
    """A server in this event loop; `settings` as those of `SimulatedServer`."""
    server = SimulatedServer(protocol, scenario, **settings)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@contextmanager
def simulated_server_thread(
    protocol: str, scenario: Scenario | None = None, **settings: Any
) -> Iterator[SimulatedServer]:
    """A server in a thread of its own, for code that blocks; `settings` as those of `SimulatedServer`."""
    server = SimulatedServer(protocol, scenario, **settings)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="simulated-server", daemon=True)
    thread.start()

    def run(work: Awaitable[None]) -> None:
        asyncio.run_coroutine_threadsafe(_wait_for(work), loop).result(timeout=30)

    try:
        run(server.start())
        try:
            yield server
        finally:
            run(server.stop())
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def serve(protocol: str, scenario: Scenario, **settings: Any) -> None:
    """Serve until SIGTERM or Ctrl-C; prints the port as one line once it listens.

    Raises:
        UsageError, UnavailableError: see `SimulatedServer.start`.
    """

    async def run() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            with suppress(NotImplementedError):  # a platform without signal handlers in the loop
                loop.add_signal_handler(number, stop.set)
        async with simulated_server(protocol, scenario, **settings) as server:
            print(server.port, flush=True)
            await stop.wait()

    asyncio.run(run())


def _make_dialect(server: SimulatedServer) -> Dialect:
    if server.protocol == "vllm":
        from dflash.backends.simulated_vllm import VllmDialect

        return VllmDialect(server)
    from dflash.backends.simulated_sglang import SglangDialect

    return SglangDialect(server)


async def _wait_for(work: Awaitable[None]) -> None:
    await work


def _read_object(raw: bytes) -> Mapping[str, Any]:
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise ApiError(f"the body is no JSON: {error}") from error
    if not isinstance(body, dict):
        raise ApiError("the body is no JSON object")
    return body


def _counters_document(counters: Counters) -> dict[str, Any]:
    return {
        "num_arrived": counters.num_arrived,
        "num_prompt_tokens": counters.num_prompt_tokens,
        "num_cached_tokens": counters.num_cached_tokens,
        "num_output_tokens": counters.num_output_tokens,
        "num_decode_steps": counters.num_decode_steps,
        "num_verify_steps": counters.num_verify_steps,
        "num_draft_tokens": counters.num_draft_tokens,
        "num_accepted_tokens": counters.num_accepted_tokens,
        "finished": counters.finished,
    }
