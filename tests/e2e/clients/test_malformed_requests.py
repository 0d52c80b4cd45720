"""No client gets a 500 from any input, whichever route it takes."""

from __future__ import annotations

import json
from collections import Counter

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from malformed_bodies import GOOD_BODIES, Malformed, requests_with_a_fault
from proxy_process import Proxy

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]

NUM_REQUESTS = 2000


@pytest.fixture(scope="module")
def http(proxy: Proxy) -> httpx.Client:
    return httpx.Client(base_url=proxy.base_url, headers=proxy.headers, timeout=30)


@pytest.mark.parametrize("route", GOOD_BODIES)
def test_the_bodies_that_are_spoilt_below_are_good(http: httpx.Client, route: str) -> None:
    assert http.post(route, json=GOOD_BODIES[route]).status_code == 200


def test_two_thousand_malformed_requests_are_refused_and_the_engine_goes_on(http: httpx.Client) -> None:
    statuses: Counter[int] = Counter()

    @settings(
        max_examples=NUM_REQUESTS,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    @given(requests_with_a_fault())
    def send(request: Malformed) -> None:
        answer = http.post(
            request.route, content=json.dumps(request.body), headers={"Content-Type": "application/json"}
        )
        statuses[answer.status_code] += 1
        told = f"{request.route}: {request.fault}: {answer.status_code} {answer.text[:300]}"
        assert answer.status_code < 500, told
        assert not request.must_be_refused or answer.status_code >= 400, told

    send()
    assert sum(statuses.values()) >= NUM_REQUESTS
    assert set(statuses) <= {200, 400, 422}
    assert statuses[400] > 0.7 * NUM_REQUESTS
    for route, body in GOOD_BODIES.items():
        assert http.post(route, json=body).status_code == 200, route
