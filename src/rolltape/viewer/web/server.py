"""The web server: addresses to pages. Names in an address are checked, and never become a path unchecked."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from rolltape.errors import ConfigError, KeyNameError, RolltapeError, StepMissingError
from rolltape.key import check_name
from rolltape.reader.run import looking
from rolltape.reader.visible import visible
from rolltape.steps import as_step
from rolltape.tape.summary import amount
from rolltape.viewer.library import Library, missing
from rolltape.viewer.web import assets, charts
from rolltape.viewer.web.guard import Guard
from rolltape.viewer.web.pages import Page, Pages, sample_charts

try:
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.convertors import Convertor, register_url_convertor
    from starlette.requests import Request
    from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
    from starlette.routing import Route
except ImportError as error:
    raise missing(error, "view") from error

if TYPE_CHECKING:
    from rolltape.viewer.comparisons import Asked, Comparisons
    from rolltape.viewer.series import Axes, Series
    from rolltape.viewer.trusts import Trusts

log = logging.getLogger("rolltape")

MOST_BODY = 128 * 1024
"""Bytes of a note as it is sent."""
PATIENCE = 4.0
"""For so many seconds an answer waits for what is being measured, before it says how far that is."""
KEPT = "private, max-age=31536000, immutable"
"""How long a browser may keep a script or a style whose address names its content. Pages are never kept."""
KINDS = {"css": "text/css", "js": "text/javascript"}


def _logged(request: Request, error: Exception) -> str:
    """What went wrong. It may be text of the tape: neither it nor the address goes to a terminal as it is."""
    said = f"{type(error).__name__}: {error}"
    log.error("%s", visible(f"{request.url.path}: {said}"))
    return said


class _Number(Convertor[int]):  # type: ignore[misc]
    """A number that a step can be. A longer one is an address that is not there."""

    regex = "[0-9]{1,19}"

    def convert(self, value: str) -> int:
        return int(value)

    def to_string(self, value: int) -> str:
        return str(value)


class Viewer:
    """Answers requests. One page is made at a time: open files are not to be read by two threads."""

    def __init__(
        self, library: Library, *, follow: bool = False, token: str | None = None, read_only: bool = False
    ) -> None:
        self._library = library
        self._pages = Pages(library, read_only=read_only)
        self._follow = follow
        self._lock = threading.Lock()
        self._count = threading.Lock()
        self._series: dict[tuple[int, str, str], Series] = {}
        self._axes: dict[tuple[int, str, str], Axes] = {}
        self._comparisons: Comparisons | None = None
        self._trusts: Trusts | None = None
        self._in_flight = 0
        self._state_told: dict[str, object] = {}
        files = assets.load()
        self.notice = assets.notice(files)
        self._files = dict(zip(("viewer.css", "viewer.js"), assets.joined(files), strict=True))
        self._version = assets.version(self._files.values())
        register_url_convertor("number", _Number())
        where, named = "{tape:number}", "{split}/{stage}/{step:number}"
        both = "{left:number}/{right:number}"
        compare = self._page(lambda at, q: self._pages.compare(**at, split=q.get("split")))
        sample = self._page(lambda at, q: self._pages.sample(**at))
        compare_sample = self._page(self._compare_sample)
        routes = [
            Route("/", self._index(self._page(lambda at, q: self._pages.index()))),
            Route("/state", self._state),
            Route("/static/{name}", self._file),
            Route(f"/t/{where}", self._page(lambda at, q: self._pages.overview(at["tape"], q.get("split")))),
            Route(f"/t/{where}/{named}", self._page(self._step)),
            Route(f"/t/{where}/{named}/{{sample:number}}", sample),
            Route(f"/c/{both}", compare),
            Route(f"/c/{both}/{named}", self._page(lambda at, q: self._pages.compare_step(**at))),
            Route(f"/c/{both}/{named}/{{sample:number}}", compare_sample),
            Route("/o", self._page(lambda at, q: self._pages.overlay(self._chosen(q), q.get("split")))),
            Route("/matrix", self._page(lambda at, q: self._pages.matrix(self._chosen(q)))),
            Route(f"/trust/{where}/{{split}}", self._page(lambda at, q: self._pages.trust(**at))),
            Route(
                f"/trusted/{where}/{{split}}",
                self._data(lambda at: self._trusted(at, self._pages.trust_part)),
            ),
            Route(
                f"/trusted/{where}/{{split}}/strip",
                self._data(lambda at: self._trusted(at, self._pages.trust_strip)),
            ),
            Route(f"/size/{where}", self._data(self._size)),
            Route(f"/report/{both}", self._data(lambda at: self._compared(at, self._pages.report))),
            Route(f"/verdict/{both}", self._data(lambda at: self._compared(at, self._pages.verdict))),
            Route(f"/series/{where}/{{split}}/{{stage}}", self._data(self._summaries)),
            *self._about_samples(where, named),
            Route(f"/axes/{where}/{{split}}/{{stage}}", self._data(self._axes_of)),
        ]
        missing = {404: lambda request, error: self._problem("There is no such page", "", 404)}
        self.app = Guard(Starlette(routes=routes, exception_handlers=missing), token=token)

    def warm(self) -> None:
        """Begin to read what the first pages show, while nobody asks for one: a browser takes its time."""
        threading.Thread(target=self._get_ready, daemon=True, name="rolltape-warm").start()

    def _get_ready(self) -> None:
        for part in self._pages.parts_to_warm():
            while self._in_flight:
                time.sleep(0.02)
            with suppress(Exception), self._lock, looking():  # whoever asks for the page is told
                part()

    def _about_samples(self, where: str, named: str) -> list[Route]:
        """The pages about samples over all steps."""
        one, asked = f"{where}/{named}/{{sample:number}}", "{split}/{stage}/{digest}"
        pages = self._pages
        return [
            Route(f"/s/{where}", self._page(lambda at, q: pages.samples.search(at["tape"], q))),
            Route(f"/found/{where}", self._asked(self._found)),
            Route(f"/p/{where}", self._page(lambda at, q: pages.samples.prompts(at["tape"], q))),
            Route(f"/fared/{where}", self._asked(lambda at, q: pages.samples.fared(at["tape"], q))),
            Route(f"/prompt/{asked}", self._page(lambda at, q: pages.samples.prompt(**at, query=q))),
            Route(f"/visits/{asked}", self._asked(lambda at, q: pages.samples.visits(**at, query=q))),
            Route(f"/course/{asked}", self._asked(lambda at, q: pages.samples.course(**at, query=q))),
            Route(f"/asked/{one}", self._answering(self._prompt_of)),
            Route(f"/peek/{one}", self._asked(self._peek)),
            Route(f"/spelled/{one}", self._asked(self._spelled)),
            Route(f"/g/{one}", self._page(lambda at, q: pages.samples.group(**at, query=q))),
            Route(f"/notes/{where}", self._page(lambda at, q: pages.samples.notes(at["tape"]))),
            Route(f"/note/{one}", self._note, methods=["POST"]),
        ]

    def _asked(self, make: Callable[[dict[str, Any], Any], dict[str, Any]]) -> Callable[[Request], Response]:
        """A route that answers a page's script, which asks for something."""
        return self._answering(lambda at, query: JSONResponse(make(at, query)))

    def _found(self, at: dict[str, Any], query: Any) -> dict[str, Any]:
        return self._pages.samples.found(at["tape"], query, self._comparison)

    def _comparison(self, left: int, right: int) -> Asked:
        from rolltape.viewer.comparisons import Comparisons

        with self._lock:
            self._comparisons = self._comparisons or Comparisons(self._library)
            return self._comparisons.ask(left, right)

    def _peek(self, at: dict[str, Any], query: Any) -> dict[str, Any]:
        with self._lock:
            return self._pages.samples.peek(**at, side=query.get("side", ""))

    def _spelled(self, at: dict[str, Any], query: Any) -> dict[str, Any]:
        with self._lock:
            return self._pages.samples.spelled(**at, query=query)

    def _prompt_of(self, at: dict[str, Any], query: Any) -> Response:
        """From a sample to its prompt."""
        with self._lock:
            digest = self._pages.samples.digest_of(**at)
        address = self._pages.url("prompt", at["split"], at["stage"], digest, **{"from": str(at["tape"])})
        return RedirectResponse(address, 302)

    async def _note(self, request: Request) -> Response:
        """Puts a note on a sample."""
        body = b""
        async for piece in request.stream():
            body += piece
            if len(body) > MOST_BODY:
                return JSONResponse({"problem": "this is too much for a note"}, 413)
        return await run_in_threadpool(self._noted, request, body)

    def _noted(self, request: Request, body: bytes) -> Response:
        try:
            at = self._named(request.path_params)
            with self._lock, looking():
                return JSONResponse(self._pages.samples.note(**at, said=json.loads(body)))
        except ConfigError as error:
            return JSONResponse({"problem": error.what}, 400)
        except (StepMissingError, KeyNameError, IndexError):
            return JSONResponse({"problem": "this is not on the tape"}, 404)
        except (ValueError, RecursionError):
            return JSONResponse({"problem": "this is no note"}, 400)
        except Exception as error:
            return JSONResponse({"problem": _logged(request, error)}, 500)

    def _page(self, make: Callable[[dict[str, Any], Any], Page]) -> Callable[[Request], Response]:
        """A route that makes a page of what its address names."""

        def whole(at: dict[str, Any], query: Any) -> Response:
            with self._lock:
                page = make(at, query)
            return self._whole(page, 200)

        return self._answering(whole)

    def _data(self, make: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[[Request], Response]:
        """A route that answers a page's script."""
        return self._answering(lambda at, query: JSONResponse(make(at)))

    def _answering(self, make: Callable[[dict[str, Any], Any], Response]) -> Callable[[Request], Response]:
        def endpoint(request: Request) -> Response:
            with self._count:
                self._in_flight += 1
            try:
                with looking():
                    return make(self._named(request.path_params), request.query_params)
            except (StepMissingError, KeyNameError, IndexError) as error:
                return self._problem("This is not on the tape", str(error), 404)
            except RolltapeError as error:
                return self._problem("This cannot be shown", str(error), 500)
            except Exception as error:  # its text may be of the tape: it goes to no terminal as it is
                return self._problem("This cannot be shown", _logged(request, error), 500)
            finally:
                with self._count:
                    self._in_flight -= 1

        return endpoint

    def _named(self, params: dict[str, Any]) -> dict[str, Any]:
        """The parts of an address, each what it can be; else an error, before any file is touched."""
        for name in ("split", "stage"):
            if name in params:
                check_name(name, params[name])
        if "step" in params:
            as_step(params["step"])
        for name in ("tape", "left", "right"):
            if name in params and not 0 <= params[name] < len(self._library.runs):
                raise IndexError(f"there is no tape {params[name]}; they are numbered from 0")
        if "left" in params:
            left, right = self._library.ordered(params["left"], params["right"])
            return params | {"left": left, "right": right}
        return dict(params)

    def _step(self, at: dict[str, Any], query: Any) -> Page:
        return self._pages.step(**at, words=query.get("q", ""), regex=query.get("regex") == "1")

    def _compare_sample(self, at: dict[str, Any], query: Any) -> Page:
        token = query.get("token", "")
        wanted = int(token) if token.isascii() and token.isdecimal() and len(token) < 19 else None
        return self._pages.compare_sample(**at, by=query.get("by", ""), token=wanted)

    def _chosen(self, query: Any) -> list[int]:
        """The runs that an address names, as ``on=0,2`` or ``on=0&on=2``; all of them without that."""
        parts = [part for one in query.getlist("on") for part in one.split(",") if part]
        if not all(part.isascii() and part.isdecimal() and len(part) < 10 for part in parts):
            raise IndexError("runs are named by their numbers, as in ?on=0,2")
        found = list(dict.fromkeys(map(int, parts))) or list(range(len(self._library.runs)))
        for at in found:
            self._named({"tape": at})
        return found

    def _size(self, at: dict[str, Any]) -> dict[str, Any]:
        """How large a tape is: every file of it is asked, which the index does not wait for."""
        size = sum(stat.size for stat in self._library.runs[at["tape"]].storage.everything())
        return {"part": amount(size), "value": size}

    def _compared(self, at: dict[str, Any], made: Callable[..., Any]) -> dict[str, Any]:
        """What a comparison says, as a part of a page; how far it is while it goes on."""
        asked = self._comparison(**at)
        if asked.report is None and not asked.problem:
            return {"done": asked.done, "steps": asked.total}
        with self._lock:
            return {"part": made(**at, asked=asked)}

    def _trusted(self, at: dict[str, Any], made: Callable[..., Any]) -> dict[str, Any]:
        """How far a run may be trusted, as a part of a page; how far measuring it is while it goes on."""
        from rolltape.viewer.trusts import Trusts

        with self._lock:
            self._trusts = self._trusts or Trusts(self._library)
            asked = self._trusts.ask(**at)
        if not asked.ended.wait(PATIENCE):  # most runs are measured in one answer
            return {"done": asked.done, "steps": asked.total}
        with self._lock:
            return {"part": made(**at, trusted=asked)}

    def _index(self, all_runs: Callable[[Request], Response]) -> Callable[[Request], Response]:
        """The first page: all runs, or the one that there is."""

        def endpoint(request: Request) -> Response:
            return RedirectResponse("/t/0", 302) if len(self._library.runs) == 1 else all_runs(request)

        return endpoint

    def _state(self, request: Request) -> Response:
        with self._lock:
            version = self._library.version()
            if version != self._state_told.get("version"):
                self._state_told = {"version": version, "last": self._library.last_step()}
            return JSONResponse(self._state_told)

    def _file(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self._files:
            return self._problem("There is no such page", "", 404)
        kept = {"cache-control": KEPT} if request.query_params.get("v") == self._version else None
        return Response(self._files[name], media_type=KINDS[name.rsplit(".", 1)[-1]], headers=kept)

    def _summaries(self, at: dict[str, Any]) -> dict[str, Any]:
        """What the recordings of a stage add up to, as far as that is known."""
        from rolltape.viewer.series import Series

        where = tape, split, stage = at["tape"], at["split"], at["stage"]
        with self._lock:
            steps = self._library.source(tape, split, stage).steps(stage, split)
            series = self._series.setdefault(where, Series(self._library, *where))
        known, done = series.advance(steps)
        href = self._pages.url("t", tape, split, stage) + "/{}"
        return {"charts": sample_charts(known, href), "known": len(known), "steps": len(steps), "done": done}

    def _axes_of(self, at: dict[str, Any]) -> dict[str, Any]:
        """What the steps of a run can be drawn over instead, as far as that is known."""
        from rolltape.viewer.series import Axes

        where = at["tape"], at["split"], at["stage"]
        with self._lock:
            axes = self._axes.setdefault(where, Axes(self._library, *where))
            known, done = axes.advance()
        return charts.axes(known) | {"done": done}

    def _whole(self, page: Page, status: int) -> Response:
        version = self._library.version() if self._follow else ""
        text = self._pages.frame(
            "frame.html", title=page.title, main=page.main, follow=self._follow, version=version,
            notice=self.notice, files=self._version,
        )  # fmt: skip
        return HTMLResponse(text, status)

    def _problem(self, title: str, text: str, status: int) -> Response:
        return self._whole(self._pages.error(title, text), status)
