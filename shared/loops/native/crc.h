/* CRC-32 of zlib, as fast as the processor allows: carry-less multiplication on x86, else a table.
 *
 * The bits are reflected: bit 31 of a register is the lowest power of x. Folding replaces 64 bytes
 * by 64 bytes that lie 64 further on and leave the same remainder: each half of a 128-bit lane is
 * multiplied by x to the distance, modulo the polynomial. The lanes then fold into one, and what is
 * left of it goes through the table like any 16 bytes: no second reduction to get right.
 */
#ifndef PENSTOCK_NATIVE_CRC_H
#define PENSTOCK_NATIVE_CRC_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__)
#define PENSTOCK_CLMUL 1
#include <immintrin.h>
#endif

static uint32_t crc_tables[8][256];

static inline uint32_t crc_by_table(uint32_t crc, const unsigned char *at, size_t left)
{
    for (; left >= 8; at += 8, left -= 8) {
        crc ^= at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
        crc = crc_tables[7][crc & 255] ^ crc_tables[6][crc >> 8 & 255] ^
              crc_tables[5][crc >> 16 & 255] ^ crc_tables[4][crc >> 24] ^
              crc_tables[3][at[4]] ^ crc_tables[2][at[5]] ^
              crc_tables[1][at[6]] ^ crc_tables[0][at[7]];
    }
    for (; left; at++, left--)
        crc = crc >> 8 ^ crc_tables[0][(crc ^ *at) & 255];
    return crc;
}

#ifdef PENSTOCK_CLMUL
static int crc_folds;

/* x^(bits) modulo the polynomial, as a multiplier: reflected, and one bit up, since the product of
 * two reflected numbers comes out one bit too low. */
static uint64_t crc_power(unsigned bits)
{
    uint32_t power = 0x80000000;
    while (bits--)
        power = power >> 1 ^ (power & 1 ? 0xEDB88320 : 0);
    return (uint64_t)power << 1;
}

static uint64_t crc_by_64[2], crc_by_16[2];

__attribute__((target("pclmul,sse2"))) static inline __m128i
crc_fold(__m128i lane, __m128i by, __m128i onto)
{
    return _mm_xor_si128(onto, _mm_xor_si128(_mm_clmulepi64_si128(lane, by, 0x00),
                                             _mm_clmulepi64_si128(lane, by, 0x11)));
}

__attribute__((target("pclmul,sse2"))) static uint32_t
crc_by_folding(uint32_t crc, const unsigned char *at, size_t left)
{
    const __m128i by_64 = _mm_loadu_si128((const __m128i *)crc_by_64);
    const __m128i by_16 = _mm_loadu_si128((const __m128i *)crc_by_16);
    const __m128i *next = (const __m128i *)at;
    unsigned char rest[16];
    __m128i a = _mm_xor_si128(_mm_loadu_si128(next), _mm_cvtsi32_si128((int)crc));
    __m128i b = _mm_loadu_si128(next + 1);
    __m128i c = _mm_loadu_si128(next + 2);
    __m128i d = _mm_loadu_si128(next + 3);
    for (next += 4, left -= 64; left >= 64; next += 4, left -= 64) {
        a = crc_fold(a, by_64, _mm_loadu_si128(next));
        b = crc_fold(b, by_64, _mm_loadu_si128(next + 1));
        c = crc_fold(c, by_64, _mm_loadu_si128(next + 2));
        d = crc_fold(d, by_64, _mm_loadu_si128(next + 3));
    }
    a = crc_fold(crc_fold(crc_fold(a, by_16, b), by_16, c), by_16, d);
    for (; left >= 16; next++, left -= 16)
        a = crc_fold(a, by_16, _mm_loadu_si128(next));
    _mm_storeu_si128((__m128i *)rest, a);
    crc = crc_by_table(0, rest, 16);
    return crc_by_table(crc, (const unsigned char *)next, left);
}
#endif

/* The CRC of the bytes whose CRC was `before`, followed by these. */
static inline uint32_t crc_on(uint32_t before, const unsigned char *at, size_t length)
{
#ifdef PENSTOCK_CLMUL
    if (length >= 64 && crc_folds)
        return ~crc_by_folding(~before, at, length);
#endif
    return ~crc_by_table(~before, at, length);
}

static inline uint32_t crc_of(const unsigned char *at, size_t length)
{
    return crc_on(0, at, length);
}

/* Stores before this are visible to other processes before those after it: neither the compiler nor
 * the processor moves one across. */
static inline void keep_order(void)
{
    atomic_thread_fence(memory_order_release);
}

/* Once, before the first use; with `portable` only the table is used from then on. */
static void crc_begin(int portable)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320 : 0);
        crc_tables[0][byte] = crc;
    }
    for (int table = 1; table < 8; table++)
        for (int byte = 0; byte < 256; byte++) {
            uint32_t crc = crc_tables[table - 1][byte];
            crc_tables[table][byte] = crc >> 8 ^ crc_tables[0][crc & 255];
        }
#ifdef PENSTOCK_CLMUL
    /* the low half of a lane is the higher power: 64 bits further from where the lane goes */
    crc_by_64[0] = crc_power(512 + 32), crc_by_64[1] = crc_power(512 - 32);
    crc_by_16[0] = crc_power(128 + 32), crc_by_16[1] = crc_power(128 - 32);
    crc_folds = !portable && __builtin_cpu_supports("pclmul");
#endif
}

#endif
