"""Real object stores on loopback, for the tests of every stack that has obstore.

    from tests.object_servers.fixtures import *     in a conftest.py: s3_url, az_url, s3_proxy, …

A server is a process of its own, started once per pytest process and ended with it, also when that is killed.
"""
