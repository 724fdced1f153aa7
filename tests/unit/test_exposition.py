"""Metrics of several processes as one text."""

from gateway.supervision.exposition import add_totals, merge, parse

ONE = """# HELP a_total Counted.
# TYPE a_total counter
a_total{x="1"} 3.0
a_total{x="a b} c"} 1.0
# HELP g Now.
# TYPE g gauge
g 5.0
# HELP h Spread.
# TYPE h histogram
h_bucket{le="1.0"} 1.0
h_bucket{le="+Inf"} 2.0
h_count 2.0
h_sum 7.5
"""
TWO = ONE.replace("3.0", "4.0").replace("g 5.0", "g 2.0")


def test_totals_add_up_and_gauges_as_they_are_told():
    for how, expected in (("sum", 7.0), ("max", 5.0), ("min", 2.0)):
        merged = parse(merge([parse(ONE), parse(TWO)], {}, {"g": how}))
        assert merged["g"].samples == {"g": expected}
        assert merged["a_total"].samples == {'a_total{x="1"}': 7.0, 'a_total{x="a b} c"}': 2.0}
        assert merged["h"].samples['h_bucket{le="+Inf"}'] == 4.0
        assert merged["h"].samples["h_sum"] == 15.0
        assert merged["h"].kind == "histogram"


def test_what_ended_processes_counted_stays_and_their_gauges_go():
    ended = {}
    add_totals(ended, parse(ONE))
    add_totals(ended, parse(ONE))
    merged = parse(merge([parse(TWO)], ended, {}))
    assert merged["a_total"].samples['a_total{x="1"}'] == 10.0
    assert merged["h"].samples["h_count"] == 6.0
    assert merged["g"].samples == {"g": 2.0}
    assert parse(merge([], ended, {})).keys() == {"a_total", "h"}


def test_lines_that_are_none_are_left_out_and_odd_numbers_survive():
    text = "# HELP x Y.\n# TYPE x gauge\nx NaN\nnonsense\ny{ 1\nz abc\nw +Inf\n# comment\nv -Inf 123\n"
    merged = merge([parse(text)], {}, {})
    assert "x NaN" in merged
    assert "w +Inf" in merged
    assert "v -Inf" in merged
    assert "nonsense" not in merged
    assert "abc" not in merged
