# Arrays of 64-bit numbers. Part of `compiled`; in Python they are array("q").

from array import array as new_array

from cpython cimport array

cdef array.array NUMBERS = new_array("q")


cdef inline int put_number(array.array numbers, int64_t number) except -1:
    cdef Py_ssize_t count = len(numbers)
    array.resize_smart(numbers, count + 1)
    numbers.data.as_longlongs[count] = number
    return 0


cdef int check_numbers(array.array numbers, Py_ssize_t count) except -1:
    """Raise ValueError unless a caller's array has `count` 64-bit numbers: after this it is indexed
    without a check."""
    if numbers is None or numbers.typecode != "q" or len(numbers) != count:
        raise ValueError("each message has the number of its key")
    return 0
