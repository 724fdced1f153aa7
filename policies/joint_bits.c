/* joint_bits.py in C, for the compiled core. The two say the same of everything: tests/unit/test_joint_bits.py. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

/* Where the C library can choose at the start (x86-64 Linux), the processor's own instruction counts. */
#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GLIBC__) && __has_attribute(target_clones)
__attribute__((target_clones("popcnt", "default")))
#endif
static Py_ssize_t
count(const unsigned char *codes, Py_ssize_t size)
{
    if (size == 0) {
        return 0;
    }
    Py_ssize_t total = __builtin_popcount(codes[0]) + __builtin_popcount(codes[size - 1]);
    Py_ssize_t at = 1;
    for (; at + 8 <= size; at += 8) {
        uint64_t here, before;
        memcpy(&here, codes + at, 8);
        memcpy(&before, codes + at - 1, 8);
        total += __builtin_popcountll(here | before);
    }
    for (; at < size; at++) {
        total += __builtin_popcount(codes[at] | codes[at - 1]);
    }
    return total;
}

static PyObject *
joint_bits(PyObject *Py_UNUSED(module), PyObject *codes)
{
    if (!PyBytes_Check(codes)) {
        PyErr_SetString(PyExc_TypeError, "joint_bits(codes: bytes)");
        return NULL;
    }
    return PyLong_FromSsize_t(count((const unsigned char *)PyBytes_AS_STRING(codes), PyBytes_GET_SIZE(codes)));
}

static PyMethodDef functions[] = {
    {"joint_bits", joint_bits, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "policies.joint_bits", .m_size = 0, .m_methods = functions,
};

PyMODINIT_FUNC
PyInit_joint_bits(void)
{
    return PyModuleDef_Init(&definition);
}
