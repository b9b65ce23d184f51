"""The one thread that shares the host's work with the thread that computes."""

from concurrent.futures import ThreadPoolExecutor

beside = ThreadPoolExecutor(1, thread_name_prefix="edgekv-host")
