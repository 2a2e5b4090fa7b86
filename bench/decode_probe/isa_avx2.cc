#include "decode_probe/kernel.inl"

namespace probe {

void decode_f32_avx2(const HeadCall& call) { decode<float>(call); }
void decode_bf16_avx2(const HeadCall& call) { decode<std::uint16_t>(call); }

}  // namespace probe
