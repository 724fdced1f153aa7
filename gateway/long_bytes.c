/* long_bytes.py in C, for the compiled core. The two say the same of everything: tests/unit/test_long_bytes.py. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

/* So many bytes are looked at before it is asked whether one of them was no plain text: without a way out of the loop
   inside, the compiler makes vector instructions of it. */
#define PIECE_BYTES 4096

/* Where the C library can choose at the start (x86-64 Linux), what has wider vectors uses them: half the time. */
#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GLIBC__) && __has_attribute(target_clones)
__attribute__((target_clones("avx2", "default")))
#endif
static int
one_ends_it(const signed char *bytes, Py_ssize_t size)
{
    signed char lowest = 127, found = 0; /* as a signed number a byte that is not ASCII is below the space, too */
    for (Py_ssize_t at = 0; at < size; at++) {
        lowest = bytes[at] < lowest ? bytes[at] : lowest;
        found |= (signed char)-((bytes[at] == '"') | (bytes[at] == '\\'));
    }
    return lowest < ' ' || found;
}

static PyObject *
plain_end(PyObject *Py_UNUSED(module), PyObject *const *arguments, Py_ssize_t count)
{
    if (count != 3 || !PyBytes_Check(arguments[0])) {
        PyErr_SetString(PyExc_TypeError, "plain_end(body: bytes, start: int, least: int)");
        return NULL;
    }
    Py_ssize_t start = PyLong_AsSsize_t(arguments[1]);
    if (start == -1 && PyErr_Occurred()) {
        return NULL;
    }
    Py_ssize_t least = PyLong_AsSsize_t(arguments[2]);
    if (least == -1 && PyErr_Occurred()) {
        return NULL;
    }
    Py_ssize_t size = PyBytes_GET_SIZE(arguments[0]);
    if (start < 0 || start > size) {
        return PyErr_Format(PyExc_ValueError, "no place in %zd bytes: %zd", size, start);
    }
    const signed char *bytes = (const signed char *)PyBytes_AS_STRING(arguments[0]);
    Py_ssize_t left = size - start;
    if (least > 0 && memchr(bytes + start, '"', (size_t)(least < left ? least : left)) != NULL) {
        return PyLong_FromLong(-1); /* a short one */
    }
    Py_ssize_t piece;
    for (Py_ssize_t at = start; at < size; at += piece) {
        piece = PIECE_BYTES - (Py_ssize_t)((uintptr_t)(bytes + at) % PIECE_BYTES); /* vectors across two lines are slow */
        if (piece > size - at) {
            piece = size - at;
        }
        if (one_ends_it(bytes + at, piece)) {
            while (bytes[at] >= ' ' && bytes[at] != '"' && bytes[at] != '\\') {
                at++;
            }
            return PyLong_FromSsize_t(bytes[at] == '"' ? at : -1);
        }
    }
    return PyLong_FromLong(-1);
}

static PyObject *
blank(PyObject *Py_UNUSED(module), PyObject *argument)
{
    Py_ssize_t size = PyLong_AsSsize_t(argument);
    if (size == -1 && PyErr_Occurred()) {
        return NULL;
    }
    if (size < 0) {
        PyErr_SetString(PyExc_ValueError, "negative count");
        return NULL;
    }
    return PyBytes_FromStringAndSize(NULL, size);
}

static PyMethodDef functions[] = {
    {"blank", blank, METH_O, NULL},
    {"plain_end", (PyCFunction)(void (*)(void))plain_end, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "gateway.long_bytes", .m_size = 0, .m_methods = functions,
};

PyMODINIT_FUNC
PyInit_long_bytes(void)
{
    return PyModuleDef_Init(&definition);
}
