"""Thirteen `trimtab kv-target` processes on this machine: reads through TCP, healthy, with two killed, and with one that answers 200 ms late."""
import asyncio
import contextlib
import pathlib
import sys
import tempfile
import threading

from benchmarks.report import ROOT, result

sys.path.insert(0, str(ROOT / 'tests/python'))
from kv_fleet import Fleet  # noqa: E402  (the tests' fleet)

V41_LAYERS = '22784,22784,22784,45696'
LATE_S = 0.2


class LateProxy:
    """Hands on what the server says LATE_S after it said it, and what the client says at once."""

    def __init__(self, server):
        self.host, self.port = server.rsplit(':', 1)
        self.loop, self.ready = asyncio.new_event_loop(), threading.Event()
        threading.Thread(target=self._run, daemon=True).start()
        self.ready.wait(10)

    def _run(self):
        asyncio.set_event_loop(self.loop)
        server = self.loop.run_until_complete(asyncio.start_server(self._line, '127.0.0.1', 0))
        self.place = 'tcp://127.0.0.1:%d' % server.sockets[0].getsockname()[1]
        self.ready.set()
        self.loop.run_forever()

    async def _line(self, client_reader, client_writer):
        server_reader, server_writer = await asyncio.open_connection(self.host, int(self.port))

        async def at_once():
            while data := await client_reader.read(65536):
                server_writer.write(data)
                await server_writer.drain()
            server_writer.close()

        async def late():
            while data := await server_reader.read(65536):
                self.loop.call_later(LATE_S, client_writer.write, data)  # in order: all wait equally long
            self.loop.call_later(LATE_S, client_writer.close)
        await asyncio.gather(at_once(), late(), return_exceptions=True)


def fleet_results(quick=False):
    blocks, reads = ('60', '200') if quick else ('200', '2000')
    results = []
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(dir=pathlib.Path(ROOT) / 'build'))
        fleet = stack.enter_context(Fleet(folder, layers=V41_LAYERS, capacity='64M'))
        written = fleet.json('exercise', '--blocks', blocks, '--reads', '1', '--keep')
        results.append(result('durable writes over TCP, 13 directories, 16 at once', written['write_mb_per_s'], 'MB/s'))

        def read(**keywords):
            return fleet.json('exercise', '--blocks', blocks, '--reads', reads, '--at-once', '1', '--only-read', **keywords)
        healthy = read()
        results += [result('single get over TCP, 13 directories, p50', healthy['read_p50_us'], 'us'),
                    result('the same, p99 over p50', healthy['read_p99_us'] / healthy['read_p50_us'], 'x', goal=5)]
        late = LateProxy(fleet.targets[0].address)
        slow = read(places=[late.place, *[t.place for t in fleet.targets[1:]]])
        results.append(result('one target 200 ms late: get p99 over the healthy p99', slow['read_p99_us'] / healthy['read_p99_us'], 'x',
                              goal=1.5, note=f'{slow["hedges"]} hedges in {slow["read"]} reads'))
        for target in fleet.targets[3:5]:
            target.kill()
        degraded = read()
        results.append(result('two targets killed: get p50 over the healthy p50', degraded['read_p50_us'] / healthy['read_p50_us'], 'x'))
        failed = sum(run['missing'] + run['wrong'] for run in (healthy, slow, degraded))
        results.append(result('blocks missing or wrong in all of these', failed, 'blocks', goal=0))
    return results
