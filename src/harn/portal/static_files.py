"""The style and the script of the portal, served from the package."""

from __future__ import annotations

from importlib.resources import files

from starlette.responses import PlainTextResponse, Response

KINDS = {
    "portal.css": "text/css",
    "portal.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
"""The files that are served; no other name is looked up."""
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
    "Content-Security-Policy": "default-src 'none'",
}


def static_answer(parts: list[str]) -> Response:
    """Answer with one of the files, which need no key."""
    name = "/".join(parts)
    if name not in KINDS:
        return PlainTextResponse("not found", 404, HEADERS)
    text = files("harn.portal").joinpath("static", name).read_text("utf-8")
    return Response(text, media_type=KINDS[name], headers=HEADERS)
