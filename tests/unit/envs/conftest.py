"""Cells are made once a session and reset by the tests that use them."""

from __future__ import annotations

import functools

import pytest

from mimetic.envs.config import CellConfig


def works(renderer):
    from mimetic.envs.render.choose import failure

    return renderer == "rays" or not failure(renderer)


@pytest.fixture(scope="session")
def cells():
    """`cells(task="push", renderer="rays", ...)`: a cell with these settings, 32 x 32 pixels unless asked otherwise."""
    pytest.importorskip("mujoco", reason="needs the package mujoco")
    from mimetic.envs.cell import Cell

    @functools.cache
    def make(**settings):
        return Cell(CellConfig(**({"renderer": "rays", "width": 32, "height": 32} | settings)))

    return make


@pytest.fixture(params=["rays", "egl"])
def renderer(request):
    pytest.importorskip("mujoco", reason="needs the package mujoco")
    if not works(request.param):
        pytest.skip(f"needs OpenGL by {request.param}")
    return request.param
