"""A proxy of one worker."""

import pytest

from litellm_exllamav3.workers import TooManyWorkers, WorkerLock, refuse_more_workers


@pytest.mark.parametrize("environ", [{"NUM_WORKERS": "2"}, {"WEB_CONCURRENCY": "4"}])
def test_more_than_one_worker_is_refused_with_what_to_do(environ):
    with pytest.raises(TooManyWorkers, match="without --num_workers"):
        refuse_more_workers(environ)


@pytest.mark.parametrize("environ", [{}, {"NUM_WORKERS": "1"}, {"NUM_WORKERS": ""}, {"WEB_CONCURRENCY": "1"}])
def test_one_worker_is_welcome(environ):
    refuse_more_workers(environ)


def test_litellms_own_number_overrides_what_other_servers_read():
    refuse_more_workers({"NUM_WORKERS": "1", "WEB_CONCURRENCY": "4"})


def test_a_worker_beside_another_of_the_same_server_is_refused(tmp_path):
    lock = WorkerLock(tmp_path, supervisor_pid=17)
    with pytest.raises(TooManyWorkers, match="started beside another"):
        WorkerLock(tmp_path, supervisor_pid=17)
    lock.release()
    WorkerLock(tmp_path, supervisor_pid=17).release()


def test_servers_of_their_own_may_share_a_folder(tmp_path):
    locks = [WorkerLock(tmp_path, supervisor_pid=pid) for pid in (17, 18, None, None)]
    for lock in locks:
        lock.release()
    assert list(tmp_path.iterdir()) == []
