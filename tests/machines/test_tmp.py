import pytest
from machines.test_handback import play
@pytest.mark.parametrize("n", range(12))
def test_it(pair, ladder, n):
    import time
    t=time.time()
    try:
        play(pair, ladder, ["child-waits","child-after","child","child-exec"][n%4])
    finally:
        print(n, time.time()-t)
