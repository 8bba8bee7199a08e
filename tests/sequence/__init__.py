import pytest

pytest.register_assert_rewrite("tests.sequence.clock_cases")  # what it expects is shown as in a test
