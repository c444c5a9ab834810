"""What stands above tables in a terminal; test_table.py has what they look like at any width."""

from moebench.commands import profile as profile_command
from moebench.commands import served as served_command
from moebench.core import paths
from moebench.profiling.record import read_records
from moebench.reports import served


def test_a_served_record_and_a_profile_name_their_protocol():
    record = served.recorded()[0]
    title = served_command.titled_table(record).title
    for text in (record.head.provenance.protocol, record.head.provenance.tolerance):
        assert text in title

    records = read_records(paths.PROFILES)
    title = profile_command.titled_table(records).title
    for text in (records[0].provenance.protocol, records[0].definition):
        assert text in title
