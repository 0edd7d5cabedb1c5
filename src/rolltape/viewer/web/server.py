"""The web server: addresses to pages. Names in an address are checked, and never become a path unchecked."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rolltape.errors import KeyNameError, RolltapeError, StepMissingError
from rolltape.key import check_name
from rolltape.reader.visible import visible
from rolltape.steps import as_step
from rolltape.viewer.library import Library, missing
from rolltape.viewer.web import assets
from rolltape.viewer.web.charts import summary_charts
from rolltape.viewer.web.guard import Guard
from rolltape.viewer.web.pages import Page, Pages

try:
    from starlette.applications import Starlette
    from starlette.convertors import Convertor, register_url_convertor
    from starlette.requests import Request
    from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
    from starlette.routing import Route
except ImportError as error:
    raise missing(error, "view") from error

if TYPE_CHECKING:
    from rolltape.viewer.series import Series

log = logging.getLogger("rolltape")

KINDS = {"css": "text/css", "js": "text/javascript"}


class _Number(Convertor[int]):  # type: ignore[misc]
    """A number that a step can be. A longer one is an address that is not there."""

    regex = "[0-9]{1,19}"

    def convert(self, value: str) -> int:
        return int(value)

    def to_string(self, value: int) -> str:
        return str(value)


class Viewer:
    """Answers requests. One page is made at a time: open files are not to be read by two threads."""

    def __init__(self, library: Library, *, follow: bool = False, token: str | None = None) -> None:
        self._library = library
        self._pages = Pages(library)
        self._follow = follow
        self._lock = threading.Lock()
        self._series: dict[tuple[int, str, str], Series] = {}
        self._warm = False
        self._files = assets.load()
        self.notice = assets.notice(self._files)
        register_url_convertor("number", _Number())
        where, named = "{tape:number}", "{split}/{stage}/{step:number}"
        both = "{left:number}/{right:number}"
        compare = self._page(lambda at, q: self._pages.compare(**at, split=q.get("split")))
        sample = self._page(lambda at, q: self._pages.sample(**at))
        compare_sample = self._page(lambda at, q: self._pages.compare_sample(**at))
        routes = [
            Route("/", self._index),
            Route("/state", self._state),
            Route("/static/{name}", self._file),
            Route(f"/t/{where}", self._page(lambda at, q: self._pages.overview(at["tape"], q.get("split")))),
            Route(f"/t/{where}/{named}", self._page(self._step)),
            Route(f"/t/{where}/{named}/{{sample:number}}", sample),
            Route(f"/c/{both}", compare),
            Route(f"/c/{both}/{named}", self._page(lambda at, q: self._pages.compare_step(**at))),
            Route(f"/c/{both}/{named}/{{sample:number}}", compare_sample),
            Route(f"/series/{where}/{{split}}/{{stage}}", self._summaries),
        ]
        missing = {404: lambda request, error: self._problem("There is no such page", "", 404)}
        self.app = Guard(Starlette(routes=routes, exception_handlers=missing), token=token)

    def _page(self, make: Callable[[dict[str, Any], Any], Page]) -> Callable[[Request], Response]:
        """A route that makes a page of what its address names."""

        def endpoint(request: Request) -> Response:
            try:
                at = self._named(request.path_params)
                with self._lock:
                    page = make(at, request.query_params)
                return self._whole(page, 200)
            except (StepMissingError, KeyNameError, IndexError) as error:
                return self._problem("This is not on the tape", str(error), 404)
            except RolltapeError as error:
                return self._problem("This cannot be shown", str(error), 500)
            except Exception as error:  # its text may be of the tape: it goes to no terminal as it is
                log.error("%s: %s", request.url.path, visible(f"{type(error).__name__}: {error}"))
                return self._problem("This cannot be shown", f"{type(error).__name__}: {error}", 500)

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
        return dict(params)

    def _step(self, at: dict[str, Any], query: Any) -> Page:
        return self._pages.step(**at, words=query.get("q", ""), regex=query.get("regex") == "1")

    def _index(self, request: Request) -> Response:
        if len(self._library.runs) == 1:
            return RedirectResponse("/t/0", 302)
        return self._whole(self._pages.index(), 200)

    def _state(self, request: Request) -> Response:
        with self._lock:
            return JSONResponse({"version": self._library.version()})

    def _file(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self._files:
            return self._problem("There is no such page", "", 404)
        return Response(self._files[name], media_type=KINDS[name.rsplit(".", 1)[-1]])

    def _summaries(self, request: Request) -> Response:
        from rolltape.viewer.series import Series

        try:
            at = self._named(request.path_params)
            tape, split, stage = at["tape"], at["split"], at["stage"]
            with self._lock:
                base = self._library.baseline(tape)
                steps = self._library.runs[tape].steps(stage, split)
                if not steps and base is not None:
                    steps = self._library.runs[base].steps(stage, split)
                where = tape, split, stage
                series = self._series.setdefault(where, Series(self._library, *where))
            known, done = series.advance(steps)
        except (RolltapeError, IndexError) as error:
            return self._problem("This is not on the tape", str(error), 404)
        except Exception as error:
            log.error("%s: %s", request.url.path, visible(f"{type(error).__name__}: {error}"))
            return self._problem("This cannot be shown", f"{type(error).__name__}: {error}", 500)
        href = self._pages.url("t", tape, split, stage) + "/{}"
        charts = [chart.as_json() for chart in summary_charts(known, href)]
        return JSONResponse({"charts": charts, "known": len(known), "steps": len(steps), "done": done})

    def _whole(self, page: Page, status: int) -> Response:
        version = self._library.version() if self._follow else ""
        text = self._pages.frame(
            "frame.html", title=page.title, main=page.main, follow=self._follow, version=version,
            styles=assets.named(self._files, ".css"), scripts=assets.named(self._files, ".js"),
            notice=self.notice,
        )  # fmt: skip
        if not self._warm:  # once somebody has a page to look at, get ready for the next
            self._warm = True
            threading.Thread(target=self._pages.warm, daemon=True).start()
        return HTMLResponse(text, status)

    def _problem(self, title: str, text: str, status: int) -> Response:
        return self._whole(self._pages.error(title, text), status)
