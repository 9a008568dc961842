"""Storage behind one protocol, `FileIO`; nothing above assumes rename, append or hot listing.

Beside it, what is found on this machine: Spark (`spark_home`), the shim's jar (`shim_jar`), and
whether the two fit (`link_check`).
"""
