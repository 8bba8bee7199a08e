/* What weights.bin begins with, and what is refused. Included by model.c.
 *
 * Eight little-endian words: magic, version of the format, the model's hash (four), bytes that follow, their CRC-32. The
 * hash says what each byte of the state is: an image with another one is of another model, or of another plan for it. */
#ifndef TG_IMAGE_H
#define TG_IMAGE_H
#include "model.h"

enum { TG_IMAGE_MAGIC = 0x4d494754, TG_IMAGE_VERSION = 1, TG_HASH_WORDS = 4 };
enum { TG_PAYLOAD_BYTES = TG_WEIGHTS_BYTES - TG_HEADER_BYTES };
enum { TG_AT_VERSION = 1, TG_AT_HASH = 2, TG_AT_BYTES = TG_AT_HASH + TG_HASH_WORDS, TG_AT_CRC }; /* in words */

static inline uint32_t tg_image_word(const unsigned char *header, int place)
{
    const unsigned char *byte = header + 4 * place;
    return (uint32_t)byte[0] | (uint32_t)byte[1] << 8 | (uint32_t)byte[2] << 16 | (uint32_t)byte[3] << 24;
}

/* CRC-32 as in zlib, from 0 on, four bits at a time: a small table, and no more than a few instructions a byte. */
static inline uint32_t tg_crc32(uint32_t crc, const unsigned char *data, size_t bytes)
{
    static const uint32_t rest[16] = {0x00000000, 0x1db71064, 0x3b6e20c8, 0x26d930ac, 0x76dc4190, 0x6b6b51f4,
                                      0x4db26158, 0x5005713c, 0xedb88320, 0xf00f9344, 0xd6d6a3e8, 0xcb61b38c,
                                      0x9b64c2b0, 0x86d3d2d4, 0xa00ae278, 0xbdbdf21c};
    crc = ~crc;
    for (size_t i = 0; i < bytes; i++) {
        crc ^= data[i];
        crc = crc >> 4 ^ rest[crc & 15u];
        crc = crc >> 4 ^ rest[crc & 15u];
    }
    return ~crc;
}

/* Of an image that has `image_bytes` in all: TG_OK, or why it is refused. What follows its header is at `payload`; null:
 * behind it. */
static inline tg_status tg_check_image(const void *image, size_t image_bytes, const void *payload)
{
    static const uint32_t hash[TG_HASH_WORDS] = {TG_MODEL_HASH};
    const unsigned char *header = (const unsigned char *)image;
    if (image == NULL)
        return TG_NULL_POINTER;
    if (image_bytes < TG_HEADER_BYTES)
        return TG_BAD_SIZE;
    if (tg_image_word(header, 0) != TG_IMAGE_MAGIC)
        return TG_BAD_IMAGE;
    if (tg_image_word(header, TG_AT_VERSION) != TG_IMAGE_VERSION)
        return TG_OTHER_VERSION;
    for (int i = 0; i < TG_HASH_WORDS; i++)
        if (tg_image_word(header, TG_AT_HASH + i) != hash[i])
            return TG_OTHER_MODEL;
    if (image_bytes != TG_WEIGHTS_BYTES || tg_image_word(header, TG_AT_BYTES) != TG_PAYLOAD_BYTES)
        return TG_BAD_SIZE;
    const unsigned char *data = payload == NULL ? header + TG_HEADER_BYTES : (const unsigned char *)payload;
    return tg_crc32(0, data, TG_PAYLOAD_BYTES) == tg_image_word(header, TG_AT_CRC) ? TG_OK : TG_BAD_IMAGE;
}

#endif
